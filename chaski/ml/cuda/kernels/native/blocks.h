// Unpacking of every quantized block format (see block.h), and the lists of them.
#pragma once

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

template <class... Formats>
struct FormatList {};
using BlockFormats = FormatList<Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, IQ4_XS, MXFP4>;
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
