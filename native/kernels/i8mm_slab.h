// The slab that matrix products of int8 read (FEAT_I8MM of ARM). It contains signed codes less the offset,
// eight consecutive elements of k per row. All other data of a row appear twice, once for each token of a
// pair. Half a panel, four pairs of rows, is stored together:
//
//   slab of a panel        |half 0|half 1|
//   half of blocks         |block 0|block 1|...      block       |codes|scales, of each sub-block|mins, if
//   any| half of a super-block  |sub-block 0|...|mins, if any|d|dmin, if any|      sub-block   |codes|scales|
//   eight elements         |row 0, 8 of k|row 1, 8 of k|...
//   scales                 |row 0|row 0|row 1|row 1|...
#pragma once

#include "blocks.h"
#include "matmul.h"
#include "simd.h"

namespace chaski::CHASKI_ISA {

constexpr int kHalves = 2;                  // of a panel
constexpr int kRowPairs = 4;                // of a half
constexpr int kEight = kRowPairs * 16;      // bytes of eight elements of k of a half
constexpr int kFloats = kRowPairs * 16;     // bytes of a float for each row of a half, twice
constexpr int kWords = kRowPairs / 2 * 16;  // the same of int16

// Writes elements 4 i to 4 i + 3, and the next four, of 16 rows as eights of the halves, which are `half`
// bytes apart.
CHASKI_INLINE void store_eight(uint8_t* to, int half, U8x64 fours, U8x64 next) {
    for (int q = 0; q < 4; ++q) {
        const uint32x4_t a = vreinterpretq_u32_u8(fours.v[q]), b = vreinterpretq_u32_u8(next.v[q]);
        uint8_t* pairs = to + q / 2 * half + q % 2 * 32;
        vst1q_u8(pairs, vreinterpretq_u8_u32(vzip1q_u32(a, b)));
        vst1q_u8(pairs + 16, vreinterpretq_u8_u32(vzip2q_u32(a, b)));
    }
}

// A float of each row.
CHASKI_INLINE void store_floats(uint8_t* to, int half, F32x16 rows) {
    for (int q = 0; q < 4; ++q) {
        auto* pairs = reinterpret_cast<float*>(to + q / 2 * half + q % 2 * 32);
        vst1q_f32(pairs, vzip1q_f32(rows.v[q], rows.v[q]));
        vst1q_f32(pairs + 4, vzip2q_f32(rows.v[q], rows.v[q]));
    }
}

// The low or the high int16 of each row.
template <bool kHigh>
CHASKI_INLINE void store_words(uint8_t* to, int half, I32x16 rows) {
    for (int q = 0; q < 4; ++q) {
        const int16x8_t both = vreinterpretq_s16_s32(rows.v[q]);
        auto* words = reinterpret_cast<int16_t*>(to + q / 2 * half + q % 2 * 16);
        vst1q_s16(words, kHigh ? vtrn2q_s16(both, both) : vtrn1q_s16(both, both));
    }
}

template <class Format, int kSubBlock>
CHASKI_INLINE void store_codes(const Format& block, uint8_t* to, int half) {
    unroll<Format::kSub / 8>([&](auto i) __attribute__((always_inline)) {
        const auto codes = [&](auto j) __attribute__((always_inline)) {
            U8x64 all = block.template codes<kSubBlock, j.value>();
            for (uint8x16_t& v : all.v) v = vsubq_u8(v, vdupq_n_u8(Format::kOffset));
            return all;
        };
        store_eight(to + i * kEight, half, codes(Index<2 * i.value>{}), codes(Index<2 * i.value + 1>{}));
    });
}

template <bool kMins, int kSub = 32>
struct BlockSlab {
    static constexpr int kCodes = 4 * kEight;
    static constexpr int kBlock = kCodes + kFloats * (32 / kSub + (kMins ? 1 : 0));
    static constexpr int kStep = 256;
    static constexpr int kHalf = kStep / 32 * kBlock;
};

template <class Format>
static void unpack_blocks(const uint8_t* panel, int64_t elements, uint8_t* slab) {
    using Slab = BlockSlab<Format::kMins, Format::kSub>;
    constexpr int kSubs = 32 / Format::kSub;
    for (int64_t at = 0; at < elements; at += Format::kElements, panel += Format::kBytes) {
        const Format block{{panel}};
        unroll<Format::kElements / 32>([&](auto s) __attribute__((always_inline)) {
            uint8_t* scales = slab + Slab::kCodes;
            unroll<kSubs>([&](auto i) __attribute__((always_inline)) {
                constexpr int kS = s.value * kSubs + i.value;
                store_codes<Format, kS>(block, slab + i * (Format::kSub / 8) * kEight, Slab::kHalf);
                store_floats(scales + i * kFloats, Slab::kHalf, block.template scale<kS>());
            });
            if constexpr (Format::kMins) {
                store_floats(scales + kFloats, Slab::kHalf, block.template min<s.value>());
            }
            slab += Slab::kBlock;
        });
    }
}

// Offsets within a half.
template <int kSub, int kMinSub>
struct SuperBlockSlab {
    static constexpr int kCodes = kSub / 8 * kEight;
    static constexpr int kSubBlock = kCodes + kWords;
    static constexpr int kMinEights = kMinSub == 0 ? 0 : kSuperElements / kMinSub / 8;
    static constexpr int kMins = kSuperElements / kSub * kSubBlock;
    static constexpr int kD = kMins + kMinEights * kEight;
    static constexpr int kDMin = kD + kFloats;
    static constexpr int kHalf = kMinSub == 0 ? kDMin : kDMin + kFloats;
};

// Joins two lines of pairs of bytes, as int16, into a line of four bytes: first of a, first of b, second of
// a, second of b. The sums that multiply mins have the same order.
CHASKI_INLINE U8x64 join(I32x16 a, I32x16 b) {
    const I32x16 all = a | shift_left<8>(b);
    U8x64 bytes;
    for (int q = 0; q < 4; ++q) bytes.v[q] = vreinterpretq_u8_s32(all.v[q]);
    return bytes;
}

template <class Format>
static void unpack_super_block(const uint8_t* panel, int64_t, uint8_t* slab) {
    using Slab = SuperBlockSlab<Format::kSub, Format::kMinSub>;
    constexpr int kHalf = Slab::kHalf, kStep = kPairStep<Format::kSub>;
    const Format block{{panel}};
    unroll<kSuperElements / Format::kSub / 2>([&](auto p) __attribute__((always_inline)) {
        constexpr int kFirst = first_of_pair<Format::kSub, p.value>;
        uint8_t *first = slab + kFirst * Slab::kSubBlock, *second = first + kStep * Slab::kSubBlock;
        store_codes<Format, kFirst>(block, first, kHalf);
        store_codes<Format, kFirst + kStep>(block, second, kHalf);
        const I32x16 scales = block.template scales<p.value>();
        store_words<false>(first + Slab::kCodes, kHalf, scales);
        store_words<true>(second + Slab::kCodes, kHalf, scales);
    });
    store_floats(slab + Slab::kD, kHalf, block.d());
    if constexpr (Format::kMins) {
        unroll<Slab::kMinEights>([&](auto i) __attribute__((always_inline)) {
            constexpr int kPair = 4 * i.value;
            const U8x64 fours = join(block.template mins<kPair>(), block.template mins<kPair + 1>());
            const U8x64 next = join(block.template mins<kPair + 2>(), block.template mins<kPair + 3>());
            store_eight(slab + Slab::kMins + i * kEight, kHalf, fours, next);
        });
        store_floats(slab + Slab::kDMin, kHalf, block.dmin());
    }
}

}  // namespace chaski::CHASKI_ISA
