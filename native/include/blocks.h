// Unpacking of every quantized block format, 16 rows at a time (lane = row), from panels (see panel.h).
//
// A format is a struct that is constructed from a block of 16 rows, and says
//   kType       its type
//   kSub        elements whose products are summed before a scale: 32 or 16; a block has kElements / kSub
//               sub-blocks
//   kOffset     a weight is scale * (code - kOffset) - min
//   kMaxCode    codes are in 0..kMaxCode
//   kMins       whether there are mins
//   kIsSuper    whether scales and mins are integers times a number of the block
//   kShared     a line of codes serves as many runs of 32 elements, one behind the other: 1, 2, or 4
//   codes<S, I>()   codes of elements 4 I .. 4 I + 3 of sub-block S; I < kSub / 4
//   scale<S>(), min<S>()
//
// where it is super, instead of the last line,
//   kMinSub             elements that share a min: 32 or 16
//   scales<P>(), mins<P>()   as 2 int16 a lane, of pair P of sub-blocks (of kMinSub elements for mins): those
//                       of 32 are the pairs 0 1, 2 3, ..., those of 16 the pairs 0 2, 1 3, 4 6, 5 7, ..., so
//                       that the halves of a pair always belong to two neighbours of 32 elements
//   d(), dmin()         what they are multiplied by; dmin is below zero, so that mins are added
//
// To add a format: a row in kFormats (panel.h), a struct here, and its name in BlockFormats or
// SuperBlockFormats. docs/adding-a-kernel.md walks through one. The formats are ggml's (GGUF files);
// `line<F>(u)` is unit u of field F in the order of kFormats.
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
    static constexpr bool kIsSuper = false;
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

// kMinOf: elements that share a min, 0 for none.
template <DType T, int kSubElements, int kCodeOffset, int kLargestCode, int kMinOf, int kSharedBy>
struct SuperBlock : Block<T, kSubElements, kCodeOffset, kLargestCode, kMinOf != 0, kSharedBy> {
    static constexpr bool kIsSuper = true;
    static constexpr int kMinSub = kMinOf;
};

// The first sub-block of pair P; the second is kPairStep behind it.
template <int kSub>
inline constexpr int kPairStep = 32 / kSub;
template <int kSub, int P>
inline constexpr int first_of_pair = 2 * P - P % kPairStep<kSub>;

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

// Bytes of each lane as 2 int16: P and P + 2; 2 P and 2 P + 1.
template <int P>
CHASKI_INLINE I32x16 pair_of_bytes(U8x64 a) {
    return pairs(byte<P>(a), byte<P + 2>(a));
}
template <int P>
CHASKI_INLINE I32x16 neighbours(U8x64 a) {
    return pairs(byte<2 * P>(a), byte<2 * P + 1>(a));
}

// Two bits, S in sub-blocks of 16: byte l of a half of 128 holds its elements 32 j + l, j = 0..3.
template <int S>
CHASKI_INLINE U8x64 pair_of_128(U8x64 codes) {
    return field<2 * (S / 2 % 4), 2>(codes);
}

// Byte S of the scales: low nibble scale, high nibble min.
struct Q2_K : SuperBlock<DType::Q2_K, 16, 0, 3, 16, 4> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return pair_of_128<S>(load<3>(8 * (S / 8) + 4 * (S % 2) + I));
    }
    template <int P>
    CHASKI_INLINE I32x16 scales() const {
        return pair_of_bytes<P % 2>(field<0, 4>(load<2>(P / 2)));
    }
    template <int P>
    CHASKI_INLINE I32x16 mins() const {
        return pair_of_bytes<P % 2>(field<4, 4>(load<2>(P / 2)));
    }
    CHASKI_INLINE F32x16 d() const { return load_f16(line<0>()); }
    CHASKI_INLINE F32x16 dmin() const { return -load_f16(line<1>()); }
};

// Third bit of sub-block S = bit S / 2 of 32 bytes. Scales of 6 bits, less 32: four low bits in bytes 0-7
// (low nibbles are scales 0-7, high nibbles 8-15), two high bits in bytes 8-11 (bits 0-1 are scales 0-3, bits
// 2-3 scales 4-7, ...).
struct Q3_K : SuperBlock<DType::Q3_K, 16, 4, 7, 0, 4> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return pair_of_128<S>(load < S<8 ? 3 : 4>(4 * (S % 2) + I)) |
               field<S / 2, 1, 2>(load<2>(4 * (S % 2) + I));
    }
    template <int P>
    CHASKI_INLINE I32x16 scales() const {
        constexpr int kGroup = P / 2;
        const U8x64 sixes =
            field<4 * (kGroup / 2), 4>(load<0>(kGroup % 2)) | field<2 * kGroup, 2, 4>(load<0>(2));
        return pairs(byte<P % 2>(sixes) + splat(-32), byte<P % 2 + 2>(sixes) + splat(-32));
    }
    CHASKI_INLINE F32x16 d() const { return load_f16(line<1>()); }
};

// Scales and mins of 6 bits of Q4_K and Q5_K in 12 bytes: bytes 0-3 are scales 0-3 and, in their two high
// bits, the high bits of scales 4-7; bytes 4-7 likewise for mins; bytes 8-11 are the low nibbles of scales
// 4-7 and, high, mins 4-7. Pair P of either, of 32 elements.
template <int P>
CHASKI_INLINE I32x16 k_scales(const uint8_t* lines) {
    if constexpr (P < 2) return neighbours<P>(field<0, 6>(load_u8(lines)));
    return neighbours<P % 2>(field<0, 4>(load_u8(lines + 128)) | field<6, 2, 4>(load_u8(lines)));
}
template <int P>
CHASKI_INLINE I32x16 k_mins(const uint8_t* lines) {
    if constexpr (P < 2) return neighbours<P>(field<0, 6>(load_u8(lines + 64)));
    return neighbours<P % 2>(field<4, 4>(load_u8(lines + 128)) | field<6, 2, 4>(load_u8(lines + 64)));
}

// Nibbles of 64, S in runs of 32: byte l holds element l (low) and 32 + l (high).
template <int S>
CHASKI_INLINE U8x64 nibble_of_64(U8x64 codes) {
    return field<4 * (S % 2), 4>(codes);
}

struct Q4_K : SuperBlock<DType::Q4_K, 32, 0, 15, 32, 2> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        return nibble_of_64<S>(load<3>(8 * (S / 2) + I));
    }
    template <int P>
    CHASKI_INLINE I32x16 scales() const {
        return k_scales<P>(line<2>());
    }
    template <int P>
    CHASKI_INLINE I32x16 mins() const {
        return k_mins<P>(line<2>());
    }
    CHASKI_INLINE F32x16 d() const { return load_f16(line<0>()); }
    CHASKI_INLINE F32x16 dmin() const { return -load_f16(line<1>()); }
};

// Fifth bit of run S of 32: bit S of 32 bytes. Sums of 32 products do not fit 16 bits, so both halves of a
// run have its scale.
struct Q5_K : SuperBlock<DType::Q5_K, 16, 0, 31, 32, 2> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        constexpr int kRun = S / 2, kUnit = 4 * (S % 2) + I;
        const U8x64 pair = kRun < 2 ? load<4>(kUnit) : load<5>(8 * (kRun / 2 - 1) + kUnit);
        return nibble_of_64<kRun>(pair) | field<kRun, 1, 4>(load<3>(kUnit));
    }
    template <int P>
    CHASKI_INLINE I32x16 scales() const {
        return k_scales<P / 2>(line<2>());
    }
    template <int P>
    CHASKI_INLINE I32x16 mins() const {
        return k_mins<P>(line<2>());
    }
    CHASKI_INLINE F32x16 d() const { return load_f16(line<0>()); }
    CHASKI_INLINE F32x16 dmin() const { return -load_f16(line<1>()); }
};

// Halves of 128 elements, quarters of 32: byte l of the half's 64 low-bit bytes holds quarters 0 (low nibble)
// and 2 (high), byte 32 + l quarters 1 and 3; two bits a quarter in byte l of the half's 32 high-bit bytes.
struct Q6_K : SuperBlock<DType::Q6_K, 16, 32, 63, 0, 4> {
    template <int S, int I>
    CHASKI_INLINE U8x64 codes() const {
        constexpr int kHalf = S / 8, kQuarter = S / 2 % 4, kUnit = 4 * (S % 2) + I;
        return field<4 * (kQuarter / 2), 4>(load<3 + 3 * kHalf + kQuarter % 2>(kUnit)) |
               field<2 * kQuarter, 2, 4>(load<2 + 3 * kHalf>(kUnit));
    }
    template <int P>
    CHASKI_INLINE I32x16 scales() const {
        return pairs(signed_byte<P % 2>(load<0>(P / 2)), signed_byte<P % 2 + 2>(load<0>(P / 2)));
    }
    CHASKI_INLINE F32x16 d() const { return load_f16(line<1>()); }
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
