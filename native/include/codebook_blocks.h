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

// Besides what all formats define (block.h), these define of run R of 32 elements
//   Entries         their codebook
//   low(R, H)       the line of the low bytes of indices, of half H of the run if the run has two
//   high<R, H>()    the high bytes, if there are more than 256 entries
//   signs<R>()      in byte g, the signs of elements 8 g to 8 g + 7
// or, instead of the last one, if kHasDeltas
//   deltas<R>()     in byte g, what is added to all codes of elements 8 g to 8 g + 7: 0 or 2
template <DType T, int kSub, int kOffset>
struct EntryBlock : Block<T, kSub, kOffset, 2 * kOffset> {
    static constexpr bool kHasDeltas = false;
};

struct IQ1_S : EntryBlock<DType::IQ1_S, 32, 9> {
    using Entries = IQ1Book;
    static constexpr bool kHasDeltas = true;

    CHASKI_INLINE I32x16 rest(int run) const { return load_u16(line<1>(run)); }
    CHASKI_INLINE const uint8_t* low(int run, int = 0) const { return line<2>(run); }
    template <int R, int H = 0>
    CHASKI_INLINE U8x64 high() const {
        return spread<0, 3>(rest(R));
    }
    template <int R>
    CHASKI_INLINE U8x64 deltas() const {
        return delta_of_sign(copy_byte<0>(as_bytes(bits<15, 1>(rest(R)))));
    }
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return shifted_entries<IQ1Book, I / 2, I % 2, 15>(load_u8(low(S)), high<S>(), as_bytes(rest(S)));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<0>()) * splat(0.125f) * odd(bits<12, 3>(rest(S)));
    }
};

// Nibble g of the high bytes has three bits of index g and its sign. Each 16-bit number of the scales has
// four of three bits, and a quarter of d at the top.
struct IQ1_M : EntryBlock<DType::IQ1_M, 16, 9> {
    using Entries = IQ1Book;
    static constexpr bool kHasDeltas = true;

    // The first of the four nibbles of a run.
    template <int R>
    static constexpr int kNibble = 4 * (R % 2);

    CHASKI_INLINE U8x64 rest(int run) const { return load<1>(run / 2); }
    CHASKI_INLINE const uint8_t* low(int run, int = 0) const { return line<2>(run); }
    template <int R, int H = 0>
    CHASKI_INLINE U8x64 high() const {
        return field<0, 3>(spread<4 * kNibble<R>, 4>(as_i32(rest(R))));
    }
    template <int R>
    CHASKI_INLINE U8x64 deltas() const {
        return delta_of_sign(field<3, 1>(spread<4 * kNibble<R>, 4>(as_i32(rest(R)))));
    }
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        constexpr int kRun = S / 2, kGroup = 2 * (S % 2) + I / 2;
        return shifted_entries<IQ1Book, kGroup, I % 2, 4 * (kNibble<kRun> + kGroup) + 3>(
            load_u8(low(kRun)), high<kRun>(), rest(kRun));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        const auto top = [&](int i)
                             __attribute__((always_inline)) { return bits<12, 4>(load_u16(line<0>(i))); };
        const I32x16 d = top(0) | shift_left<4>(top(1)) | shift_left<8>(top(2)) | shift_left<12>(top(3));
        return widen_f16(d) * splat(0.125f) * odd(bits<3 * (S % 4), 3>(load_u16(line<0>(S / 4))));
    }
};

struct IQ2_XXS : EntryBlock<DType::IQ2_XXS, 32, 43> {
    using Entries = IQ2_XXSBook;

    CHASKI_INLINE const uint8_t* low(int run, int = 0) const { return line<1>(2 * run); }
    template <int R>
    CHASKI_INLINE U8x64 signs() const {
        return with_eighth_sign(spread<0, 7>(as_i32(load<1>(2 * R + 1))));
    }
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        const U8x64 index = load_u8(low(S));
        return signed_entries<IQ2_XXSBook, I / 2, I % 2, 4 * I, 86>(index, index, signs<S>());
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<0>()) * splat(0.125f) * odd(nibble<7>(load<1>(2 * S + 1)));
    }
};

// Packing separated the low bytes of indices from the bytes with a high bit and the signs.
struct IQ2_XS : EntryBlock<DType::IQ2_XS, 16, 43> {
    using Entries = IQ2_XSBook;

    CHASKI_INLINE const uint8_t* low(int run, int = 0) const { return line<2>(2 * run); }
    template <int R, int H = 0>
    CHASKI_INLINE U8x64 high() const {
        return field<0, 1>(load<2>(2 * R + 1));
    }
    template <int R>
    CHASKI_INLINE U8x64 signs() const {
        return with_eighth_sign(field<1, 7>(load<2>(2 * R + 1)));
    }
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        constexpr int kRun = S / 2, kGroup = 2 * (S % 2) + I / 2;
        return signed_entries<IQ2_XSBook, kGroup, I % 2, 8 * kGroup + 4 * (I % 2), 86>(
            load_u8(low(kRun)), high<kRun>(), signs<kRun>());
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<0>()) * splat(0.125f) * odd(nibble<S % 8>(load<1>(S / 8)));
    }
};

struct IQ2_S : EntryBlock<DType::IQ2_S, 16, 43> {
    using Entries = IQ2_SBook;

    CHASKI_INLINE const uint8_t* low(int run, int = 0) const { return line<3>(run); }
    template <int R, int H = 0>
    CHASKI_INLINE U8x64 high() const {
        return spread<8 * (R % 4), 2>(as_i32(load<2>(R / 4)));
    }
    template <int R>
    CHASKI_INLINE U8x64 signs() const {
        return load<4>(R);
    }
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        constexpr int kRun = S / 2, kGroup = 2 * (S % 2) + I / 2;
        return signed_entries<IQ2_SBook, kGroup, I % 2, 8 * kGroup + 4 * (I % 2), 86>(
            load_u8(low(kRun)), high<kRun>(), signs<kRun>());
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<0>()) * splat(0.125f) * odd(nibble<S % 8>(load<1>(S / 8)));
    }
};

struct IQ3_XXS : EntryBlock<DType::IQ3_XXS, 32, 62> {
    using Entries = IQ3_XXSBook;

    CHASKI_INLINE const uint8_t* low(int run, int half) const { return line<2>(2 * run + half); }
    template <int R>
    CHASKI_INLINE U8x64 signs() const {
        return with_eighth_sign(spread<0, 7>(as_i32(load<1>(R))));
    }
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        const U8x64 index = load_u8(low(S, I / 4));
        return signed_entries<IQ3_XXSBook, I % 4, 0, 4 * I, 124>(index, index, signs<S>());
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<0>()) * splat(0.25f) * odd(nibble<7>(load<1>(S)));
    }
};

struct IQ3_S : EntryBlock<DType::IQ3_S, 32, 15> {
    using Entries = IQ3_SBook;

    CHASKI_INLINE const uint8_t* low(int run, int half) const { return line<4>(2 * run + half); }
    template <int R, int H>
    CHASKI_INLINE U8x64 high() const {
        return spread<8 * (R % 4) + 4 * H, 1>(as_i32(load<2>(R / 4)));
    }
    template <int R>
    CHASKI_INLINE U8x64 signs() const {
        return load<3>(R);
    }
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return signed_entries<IQ3_SBook, I % 4, 0, 4 * I, 30>(load_u8(low(S, I / 4)), high<S, I / 4>(),
                                                              signs<S>());
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<0>()) * odd(nibble<S>(load<1>(0)));
    }
};

}  // namespace chaski::CHASKI_ISA
