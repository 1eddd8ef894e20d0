// Unpacking of every quantized block format (see block.h), and the lists of them.
#pragma once

#include "codebook_blocks.h"
#include "k_blocks.h"

namespace chaski::CHASKI_ISA {

struct Q4_0 : Block<DType::Q4_0, 32, 8, 15> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return nibbles_of_32<I>(line<0>());
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<1>());
    }
};

// Of keys: bit I of byte b of unit n is bit n of the code of element 4 I + b.
struct Q3_0 : Block<DType::Q3_0, 32, 4, 7> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return field<I, 1>(load<0>(0)) | field<I, 1, 1>(load<0>(1)) | field<I, 1, 2>(load<0>(2));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<1>());
    }
};

struct Q4_1 : Block<DType::Q4_1, 32, 0, 15, true> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return nibbles_of_32<I>(line<0>());
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<1>());
    }
    template <int S>
    CHASKI_INLINE F32x16 min() const {
        return -load_f16(line<2>());
    }
};

// The fifth bits were spread when packing: bit I of byte b belongs to element 4 I + b.
struct Q5_0 : Block<DType::Q5_0, 32, 16, 31> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return nibbles_of_32<I>(line<0>()) | field<I, 1, 4>(load<1>(0));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<2>());
    }
};

struct Q5_1 : Block<DType::Q5_1, 32, 0, 31, true> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return nibbles_of_32<I>(line<0>()) | field<I, 1, 4>(load<1>(0));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<2>());
    }
    template <int S>
    CHASKI_INLINE F32x16 min() const {
        return -load_f16(line<3>());
    }
};

// The sign bit was flipped when packing: codes are q + 128.
struct Q8_0 : Block<DType::Q8_0, 32, 128, 255> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return load<0>(I);
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<1>());
    }
};

// Values of the tables of 16, made unsigned by adding 128 and 12.
alignas(16) inline constexpr uint8_t kIQ4Codes[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                      129, 141, 153, 166, 181, 197, 217, 241};
alignas(16) inline constexpr uint8_t kMXFP4Codes[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                        12, 11, 10, 9,  8,  6,  4,  0};

struct IQ4_NL : Block<DType::IQ4_NL, 32, 128, 241> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return lookup(kIQ4Codes, nibbles_of_32<I>(line<0>()));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<1>());
    }
};

// Sub-blocks like IQ4_NL; scales of 6 bits, less 32: four low bits in nibble S, two high bits in bits 2 S.
struct IQ4_XS : Block<DType::IQ4_XS, 32, 128, 241> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return lookup(kIQ4Codes, nibbles_of_32<I>(line<3>(4 * S)));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        const I32x16 low = byte<S / 2>(field<4 * (S % 2), 4>(load<2>(0)));
        const I32x16 high = shift_left<4>(bits<2 * S, 2>(load_u16(line<1>())));
        return load_f16(line<0>()) * to_f32(low + high + splat(-32));
    }
};

// The scale is 2^(e - 128), half of the standard's because the table holds twice the values. As bits of a
// float: (e - 1) << 23, or the subnormals 2^-128 and 2^-127 for e = 0 and 1.
struct MXFP4 : Block<DType::MXFP4, 32, 12, 24> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return lookup(kMXFP4Codes, nibbles_of_32<I>(line<0>()));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        const I32x16 e = load_bytes(line<1>());
        const I32x16 subnormal = shift_left<21>(CHASKI_ISA::min(e, splat(1)) + splat(1));
        return bit_cast_f32(max(shift_left<23>(e + splat(-1)), subnormal));
    }
};

// Like MXFP4, but 16 elements share a scale of four bits of exponent and three of mantissa (E4M3). As bits of
// a half-precision number, it has the same form, and is 2^8 times too small. 127 stands for zero.
struct NVFP4 : Block<DType::NVFP4, 16, 12, 24> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return lookup(kMXFP4Codes, field<4 * (I / 2), 4>(load<1>(2 * S + I % 2)));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        const I32x16 own = byte<S>(load<0>(0));
        const F32x16 other_than_127 = to_f32(max(CHASKI_ISA::min(own + splat(-127), splat(1)), splat(-1)));
        return widen_f16(shift_left<7>(bits<0, 7>(own))) * splat(128.0f) * (other_than_127 * other_than_127);
    }
};

// The bits were spread when packing: bit I of byte b of unit S belongs to element 4 I + b.
struct Q1_0 : Block<DType::Q1_0, 32, 1, 2> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return field<I, 1, 1>(load<0>(S));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<1>());
    }
};

// Likewise, two bits of 16 elements in a unit.
struct Q2_0 : Block<DType::Q2_0, 32, 1, 3> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return field<2 * (I % 4), 2>(load<0>(2 * S + I / 4));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<1>());
    }
};

// Digit N of base 3 of each byte, whose value is a fraction of 256: the integer part of the fraction times
// 3^(N + 1), less multiples of 3.
template <int N>
CHASKI_INLINE U8x64 ternary(U8x64 bytes) {
    constexpr int kPowers[] = {1, 3, 9, 27, 81};
    const I32x16 first = splat(0x00ff00ff);  // of two bytes
    const auto digit = [&](I32x16 numbers) __attribute__((always_inline)) {
        return times(times(numbers, kPowers[N]) & first, 3);
    };
    const I32x16 even = digit(as_i32(bytes) & first), odd = digit(bits<8, 24>(as_i32(bytes)) & first);
    return as_bytes((bits<8, 24>(even) & first) | (odd & splat(0x03000300)));
}

// Bytes 0 to 31 have elements 0 to 159, a digit of all bytes after the other; bytes 32 to 47 have elements
// 160 to 239, and four bytes with four digits have the rest.
struct TQ1_0 : Block<DType::TQ1_0, 32, 1, 2> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        constexpr int kAfter = 32 * S + 4 * I - 160;
        if constexpr (kAfter < 0) {
            return ternary<S>(load<1>(I));
        } else if constexpr (kAfter < 80) {
            return ternary<kAfter / 16>(load<1>(8 + kAfter % 16 / 4));
        } else {
            return ternary<I - 4>(load<2>(0));
        }
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<0>());
    }
};

// The codes are those of Q2_K.
struct TQ2_0 : Block<DType::TQ2_0, 32, 1, 3, false, 4> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return field<2 * (S % 4), 2>(load<1>(8 * (S / 4) + I));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<0>());
    }
};

template <class... Formats>
struct FormatList {};
using BlockFormats =
    FormatList<Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, IQ4_XS, MXFP4, NVFP4, Q1_0, Q2_0, TQ1_0, TQ2_0>;
using CodebookFormats = FormatList<IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S>;
using SuperBlockFormats = FormatList<Q2_K, Q3_K, Q4_K, Q5_K, Q6_K>;

// Float types: value number i along k of each of 16 rows, widened.
struct F32Weights {
    static constexpr DType kType = DType::F32;
    static CHASKI_INLINE F32x16 load(const uint8_t* panel, int64_t i) {
        return load_f32(reinterpret_cast<const float*>(panel + 64 * i));
    }
};
struct F16Weights {
    static constexpr DType kType = DType::F16;
    static CHASKI_INLINE F32x16 load(const uint8_t* panel, int64_t i) { return load_f16(panel + 64 * i); }
};
struct BF16Weights {
    static constexpr DType kType = DType::BF16;
    static CHASKI_INLINE F32x16 load(const uint8_t* panel, int64_t i) {
        const I32x16 pairs = as_i32(load_u8(panel + 64 * (i / 2)));
        return bit_cast_f32(shift_left<16>(i % 2 == 0 ? pairs : bits<16, 16>(pairs)));
    }
};

}  // namespace chaski::CHASKI_ISA
