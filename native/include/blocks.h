// Unpacking of every quantized block format, 16 rows at a time (lane = row), from panels (see panel.h).
//
// A format is a struct that is constructed from a block of 16 rows, and says
//   kType       its type
//   kSub        elements that share a scale: 32 or 16; a block has kElements / kSub sub-blocks
//   kOffset     a weight is scale * (code - kOffset) - min
//   kMaxCode    codes are in 0..kMaxCode
//   kMins       whether there are mins
//   kShared     a line of codes serves as many runs of 32 elements, one behind the other: 1, 2, or 4
//   codes<S, I>()   codes of elements 4 I .. 4 I + 3 of sub-block S; I < kSub / 4
//   scale<S>(), min<S>()
//
// To add a format: a row in kFormats (panel.h), a struct here, and its name in QuantizedFormats.
// docs/adding-a-kernel.md walks through one.
// The formats are ggml's (GGUF files); `line<F>(u)` is unit u of field F in the order of kFormats.
#pragma once

#include "panel.h"
#include "simd.h"

namespace chaski::CHASKI_ISA {

template <DType T, int kSubElements, int kCodeOffset, int kLargestCode, bool kHasMins = false,
          int kSharedBy = 1>
struct Block {
    static constexpr DType kType = T;
    static constexpr int kSub = kSubElements;
    static constexpr int kOffset = kCodeOffset;
    static constexpr int kMaxCode = kLargestCode;
    static constexpr bool kMins = kHasMins;
    static constexpr int kShared = kSharedBy;
    static constexpr int kElements = find_format(T)->elements;
    static constexpr int kBytes = kLanes * find_format(T)->bytes;

    const uint8_t* p;

    template <int F>
    CHASKI_INLINE const uint8_t* line(int unit = 0) const {
        constexpr Place kPlace = place_of(*find_format(T), F);
        return p + kPlace.start + kPlace.step * unit;
    }
    template <int F>
    CHASKI_INLINE U8x64 load(int unit) const {
        return load_u8(line<F>(unit));
    }
};

// Nibbles of a block of 32: byte j holds element j (low) and element j + 16 (high).
template <int I>
CHASKI_INLINE U8x64 nibbles_of_32(const uint8_t* lines) {
    return field<4 * (I / 4), 4>(load_u8(lines + 64 * (I % 4)));
}

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

// Two bits, S in sub-blocks of 16: byte l of a half of 128 holds its elements 32 j + l, j = 0..3.
template <int S>
CHASKI_INLINE U8x64 pair_of_128(U8x64 codes) {
    return field<2 * (S / 2 % 4), 2>(codes);
}

// Byte S of the scales: low nibble scale, high nibble min.
struct Q2_K : Block<DType::Q2_K, 16, 0, 3, true, 4> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return pair_of_128<S>(load<3>(8 * (S / 8) + 4 * (S % 2) + I));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<0>()) * to_f32(byte<S % 4>(field<0, 4>(load<2>(S / 4))));
    }
    template <int S>
    CHASKI_INLINE F32x16 min() const {
        return load_f16(line<1>()) * to_f32(byte<S % 4>(field<4, 4>(load<2>(S / 4))));
    }
};

// Third bit of sub-block S = bit S / 2 of 32 bytes. Scales of 6 bits, less 32: four low bits in bytes 0-7
// (low nibbles are scales 0-7, high nibbles 8-15), two high bits in bytes 8-11 (bits 0-1 are scales 0-3, bits
// 2-3 scales 4-7, ...).
struct Q3_K : Block<DType::Q3_K, 16, 4, 7, false, 4> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return pair_of_128<S>(load < S<8 ? 3 : 4>(4 * (S % 2) + I)) |
               field<S / 2, 1, 2>(load<2>(4 * (S % 2) + I));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        constexpr int kGroup = S / 4;
        const U8x64 sixes =
            field<4 * (kGroup / 2), 4>(load<0>(kGroup % 2)) | field<2 * kGroup, 2, 4>(load<0>(2));
        return load_f16(line<1>()) * to_f32(byte<S % 4>(sixes) + splat(-32));
    }
};

// Scales and mins of 6 bits of Q4_K and Q5_K in 12 bytes: bytes 0-3 are scales 0-3 and, in their two high
// bits, the high bits of scales 4-7; bytes 4-7 likewise for mins; bytes 8-11 are the low nibbles of scales
// 4-7 and, high, mins 4-7.
template <int S>
CHASKI_INLINE I32x16 k_scale(const uint8_t* lines) {
    if constexpr (S < 4) return byte<S>(field<0, 6>(load_u8(lines)));
    return byte<S % 4>(field<0, 4>(load_u8(lines + 128)) | field<6, 2, 4>(load_u8(lines)));
}
template <int S>
CHASKI_INLINE I32x16 k_min(const uint8_t* lines) {
    if constexpr (S < 4) return byte<S>(field<0, 6>(load_u8(lines + 64)));
    return byte<S % 4>(field<4, 4>(load_u8(lines + 128)) | field<6, 2, 4>(load_u8(lines + 64)));
}

// Nibbles of 64: byte l holds element l (low) and 32 + l (high).
template <int S>
CHASKI_INLINE U8x64 nibble_of_64(U8x64 codes) {
    return field<4 * (S % 2), 4>(codes);
}

struct Q4_K : Block<DType::Q4_K, 32, 0, 15, true, 2> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return nibble_of_64<S>(load<3>(8 * (S / 2) + I));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<0>()) * to_f32(k_scale<S>(line<2>()));
    }
    template <int S>
    CHASKI_INLINE F32x16 min() const {
        return load_f16(line<1>()) * to_f32(k_min<S>(line<2>()));
    }
};

// Fifth bit of sub-block S: bit S of 32 bytes.
struct Q5_K : Block<DType::Q5_K, 32, 0, 31, true, 2> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        const U8x64 pair = S < 2 ? load<4>(I) : load<5>(8 * (S / 2 - 1) + I);
        return nibble_of_64<S>(pair) | field<S, 1, 4>(load<3>(I));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<0>()) * to_f32(k_scale<S>(line<2>()));
    }
    template <int S>
    CHASKI_INLINE F32x16 min() const {
        return load_f16(line<1>()) * to_f32(k_min<S>(line<2>()));
    }
};

// Halves of 128 elements, quarters of 32: byte l of the half's 64 low-bit bytes holds quarters 0 (low nibble)
// and 2 (high), byte 32 + l quarters 1 and 3; two bits a quarter in byte l of the half's 32 high-bit bytes.
struct Q6_K : Block<DType::Q6_K, 16, 32, 63, false, 4> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        constexpr int kHalf = S / 8, kQuarter = S / 2 % 4, kUnit = 4 * (S % 2) + I;
        return field<4 * (kQuarter / 2), 4>(load<3 + 3 * kHalf + kQuarter % 2>(kUnit)) |
               field<2 * kQuarter, 2, 4>(load<2 + 3 * kHalf>(kUnit));
    }
    template <int S>
    CHASKI_INLINE F32x16 scale() const {
        return load_f16(line<1>()) * to_f32(signed_byte<S % 4>(load<0>(S / 4)));
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
using QuantizedFormats =
    FormatList<Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4>;

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
