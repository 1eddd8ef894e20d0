// Unpacking of the formats whose codes are entries of codebooks, IQ1, IQ2 and IQ3 (see block.h).
#pragma once

#if defined(__AVX512VBMI__)
#include "codebook_lookup_avx512_vbmi.h"
#else
#include "codebook_lookup.h"
#endif

namespace chaski::CHASKI_ISA {

// 2 n + 1 as a float.
CHASKI_INLINE F32x16 odd(I32x16 n) { return to_f32(shift_left<1>(n) + splat(1)); }

// Nibble N of the lanes.
template <int N>
CHASKI_INLINE I32x16 nibble(U8x64 a) {
    return bits<4 * N, 4>(as_i32(a));
}

struct IQ1_S : Block<DType::IQ1_S, 32, 9, 18> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        const I32x16 rest = load_u16(line<1>(S));
        return shifted_entries<IQ1Book, I / 2, I % 2, 15>(load<2>(S), spread<0, 3>(rest), as_bytes(rest));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<0>()) * splat(0.125f) * odd(bits<12, 3>(load_u16(line<1>(S))));
    }
};

// Nibble g of the high bytes has three bits of index g and its sign. Each 16-bit number of the scales has
// four of three bits, and a quarter of d at the top.
struct IQ1_M : Block<DType::IQ1_M, 16, 9, 18> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        constexpr int kGroup = 2 * (S % 2) + I / 2, kNibble = 4 * (S / 2 % 2);
        const U8x64 rest = load<1>(S / 4);
        const U8x64 high = field<0, 3>(spread<4 * kNibble, 4>(as_i32(rest)));
        return shifted_entries<IQ1Book, kGroup, I % 2, 4 * (kNibble + kGroup) + 3>(load<2>(S / 2), high,
                                                                                   rest);
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        const auto top = [&](int i)
                             __attribute__((always_inline)) { return bits<12, 4>(load_u16(line<0>(i))); };
        const I32x16 d = top(0) | shift_left<4>(top(1)) | shift_left<8>(top(2)) | shift_left<12>(top(3));
        return widen_f16(d) * splat(0.125f) * odd(bits<3 * (S % 4), 3>(load_u16(line<0>(S / 4))));
    }
};

struct IQ2_XXS : Block<DType::IQ2_XXS, 32, 43, 86> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        const U8x64 low = load<1>(2 * S), signs = with_eighth_sign(spread<0, 7>(as_i32(load<1>(2 * S + 1))));
        return signed_entries<IQ2_XXSBook, I / 2, I % 2, 4 * I, 86>(low, low, signs);
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<0>()) * splat(0.125f) * odd(nibble<7>(load<1>(2 * S + 1)));
    }
};

// Packing separated the low bytes of indices from the bytes with a high bit and the signs.
struct IQ2_XS : Block<DType::IQ2_XS, 16, 43, 86> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        constexpr int kGroup = 2 * (S % 2) + I / 2;
        const U8x64 low = load<2>(S / 2 * 2), rest = load<2>(S / 2 * 2 + 1);
        return signed_entries<IQ2_XSBook, kGroup, I % 2, 8 * kGroup + 4 * (I % 2), 86>(
            low, field<0, 1>(rest), with_eighth_sign(field<1, 7>(rest)));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<0>()) * splat(0.125f) * odd(nibble<S % 8>(load<1>(S / 8)));
    }
};

struct IQ2_S : Block<DType::IQ2_S, 16, 43, 86> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        constexpr int kGroup = 2 * (S % 2) + I / 2;
        const U8x64 high = spread<8 * (S / 2 % 4), 2>(as_i32(load<2>(S / 8)));
        return signed_entries<IQ2_SBook, kGroup, I % 2, 8 * kGroup + 4 * (I % 2), 86>(load<3>(S / 2), high,
                                                                                      load<4>(S / 2));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<0>()) * splat(0.125f) * odd(nibble<S % 8>(load<1>(S / 8)));
    }
};

struct IQ3_XXS : Block<DType::IQ3_XXS, 32, 62, 124> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        const U8x64 low = load<2>(2 * S + I / 4), signs = with_eighth_sign(spread<0, 7>(as_i32(load<1>(S))));
        return signed_entries<IQ3_XXSBook, I % 4, 0, 4 * I, 124>(low, low, signs);
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<0>()) * splat(0.25f) * odd(nibble<7>(load<1>(S)));
    }
};

struct IQ3_S : Block<DType::IQ3_S, 32, 15, 30> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        const U8x64 high = spread<8 * (S % 4) + I / 4 * 4, 1>(as_i32(load<2>(S / 4)));
        return signed_entries<IQ3_SBook, I % 4, 0, 4 * I, 30>(load<4>(2 * S + I / 4), high, load<3>(S));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<0>()) * odd(nibble<S>(load<1>(0)));
    }
};

}  // namespace chaski::CHASKI_ISA
