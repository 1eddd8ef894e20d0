// Unpacking of the formats with super-blocks of 256 elements, Q2_K to Q6_K (see block.h).
#pragma once

#include "block.h"

namespace chaski::CHASKI_ISA {

// In addition to the traits of block.h, formats here define four_scales<W>() and four_mins<W>(): words of the
// four numbers of sub-blocks 4 W to 4 W + 3 (of Q5_K: of 32 elements), from which pairs are made.

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
    template <int W>
    CHASKI_INLINE U8x64 four_scales() const {
        return field<0, 4>(load<2>(W));
    }
    template <int W>
    CHASKI_INLINE U8x64 four_mins() const {
        return field<4, 4>(load<2>(W));
    }
    template <int P>
    CHASKI_INLINE I32x16 scales() const {
        return pair_of_bytes<P % 2>(four_scales<P / 2>());
    }
    template <int P>
    CHASKI_INLINE I32x16 mins() const {
        return pair_of_bytes<P % 2>(four_mins<P / 2>());
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
    template <int W>
    CHASKI_INLINE U8x64 four_scales() const {  // plus 32
        return field<4 * (W / 2), 4>(load<0>(W % 2)) | field<2 * W, 2, 4>(load<0>(2));
    }
    template <int P>
    CHASKI_INLINE I32x16 scales() const {
        const U8x64 sixes = four_scales<P / 2>();
        return pairs(byte<P % 2>(sixes) + splat(-32), byte<P % 2 + 2>(sixes) + splat(-32));
    }
    CHASKI_INLINE F32x16 d() const { return load_f16(line<1>()); }
};

// Scales and mins of 6 bits of Q4_K and Q5_K in 12 bytes: bytes 0-3 are scales 0-3 and, in their two high
// bits, the high bits of scales 4-7; bytes 4-7 likewise for mins; bytes 8-11 are the low nibbles of scales
// 4-7 and, high, mins 4-7. Number W of the two words of either.
template <int W>
CHASKI_INLINE U8x64 k_scales(const uint8_t* lines) {
    if constexpr (W == 0) return field<0, 6>(load_u8(lines));
    return field<0, 4>(load_u8(lines + 128)) | field<6, 2, 4>(load_u8(lines));
}
template <int W>
CHASKI_INLINE U8x64 k_mins(const uint8_t* lines) {
    if constexpr (W == 0) return field<0, 6>(load_u8(lines + 64));
    return field<4, 4>(load_u8(lines + 128)) | field<6, 2, 4>(load_u8(lines + 64));
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
    template <int W>
    CHASKI_INLINE U8x64 four_scales() const {
        return k_scales<W>(line<2>());
    }
    template <int W>
    CHASKI_INLINE U8x64 four_mins() const {
        return k_mins<W>(line<2>());
    }
    template <int P>
    CHASKI_INLINE I32x16 scales() const {
        return neighbours<P % 2>(four_scales<P / 2>());
    }
    template <int P>
    CHASKI_INLINE I32x16 mins() const {
        return neighbours<P % 2>(four_mins<P / 2>());
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
    template <int W>
    CHASKI_INLINE U8x64 four_scales() const {
        return k_scales<W>(line<2>());
    }
    template <int W>
    CHASKI_INLINE U8x64 four_mins() const {
        return k_mins<W>(line<2>());
    }
    template <int P>
    CHASKI_INLINE I32x16 scales() const {
        return neighbours<P / 2 % 2>(four_scales<P / 4>());
    }
    template <int P>
    CHASKI_INLINE I32x16 mins() const {
        return neighbours<P % 2>(four_mins<P / 2>());
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
    template <int W>
    CHASKI_INLINE U8x64 four_scales() const {
        return load<0>(W);
    }
    template <int P>
    CHASKI_INLINE I32x16 scales() const {
        const U8x64 four = four_scales<P / 2>();
        return pairs(signed_byte<P % 2>(four), signed_byte<P % 2 + 2>(four));
    }
    CHASKI_INLINE F32x16 d() const { return load_f16(line<1>()); }
};

}  // namespace chaski::CHASKI_ISA
