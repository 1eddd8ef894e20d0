// Super-blocks for tile registers, which multiply int8. A code times its scale, and a value times its power
// of two, are each split into six low bits and the rest, which fit int8.
//
//   w = 64 * w1 + w0, 0 <= w0 < 64     |w| <= 4096: Q6_K has the largest scales and codes
//   x = 64 * x1 + x0, 0 <= x0 < 64     |x| <= 127 * 2^4
//   sum w * x = 4096 * sum w1 * x1 + 64 * (sum w1 * x0 + sum w0 * x1) + sum w0 * x0
//
// These are four products. Three are enough with a third piece, the sum of both, which fits int8 as well:
//
//   sum w1 * x0 + sum w0 * x1 = sum (w0 + w1) * (x0 + x1) - sum w0 * x0 - sum w1 * x1
#pragma once

#include "simd.h"
#include "super_blocks.h"
#include "unpack.h"

namespace chaski::CHASKI_ISA {

enum Piece { kLow, kHigh, kBoth };
inline constexpr int kPieceBits = 6;
inline constexpr int kChunk = 64, kChunks = kSuperElements / kChunk;  // elements of k in a tile

// 64 bytes of each piece.
struct Pieces {
    U8x64 low, high;
};

// The slab of a super-block: lines of codes in the order of k, separately for each of two or three pieces.
template <int kMinSub, int kPieces>
struct PiecesSlab {
    static constexpr int kMinPairs = kMinSub == 0 ? 0 : kSuperElements / kMinSub / 2;
    static constexpr int kLines = kLanes * kChunk;  // bytes of a tile
    static constexpr int kMins = kChunks * kPieces * kLines;
    static constexpr int kD = kMins + 64 * kMinPairs;
    static constexpr int kDMin = kD + 64;
    static constexpr int kBytes = kMinSub == 0 ? kDMin : kDMin + 64;

    static constexpr int lines_of(int chunk, int piece) { return (chunk * kPieces + piece) * kLines; }
};

// Unpacks to PiecesSlab, on processors with tile registers.
template <class Format, int kPieces>
static void unpack_pieces(const uint8_t* panel, int64_t elements, uint8_t* slab);

#if defined(__AVX512VNNI__)

// (code - kOffset) * scale of codes in bytes; both halves of a lane contain its scale.
template <int kOffset>
CHASKI_INLINE Pieces pieces_of_codes(U8x64 codes, I32x16 scale) {
    const __m512i first = _mm512_set1_epi16(0xff);  // of two bytes
    __m512i even = _mm512_and_si512(codes.v, first), odd = _mm512_srli_epi16(codes.v, 8);
    if constexpr (kOffset != 0) {
        even = _mm512_sub_epi16(even, _mm512_set1_epi16(kOffset));
        odd = _mm512_sub_epi16(odd, _mm512_set1_epi16(kOffset));
    }
    even = _mm512_mullo_epi16(even, scale.v);
    odd = _mm512_mullo_epi16(odd, scale.v);
    constexpr int kSelect = 0xca;  // bits of the second operand if the first is set, else of the third
    const __m512i bytes = _mm512_ternarylogic_epi32(first, even, _mm512_slli_epi16(odd, 8), kSelect);
    const __m512i low = _mm512_and_si512(bytes, _mm512_set1_epi8((1 << kPieceBits) - 1));
    const __m512i high = _mm512_ternarylogic_epi32(first, _mm512_srli_epi16(even, kPieceBits),
                                                   _mm512_slli_epi16(odd, 8 - kPieceBits), kSelect);
    return {{low}, {high}};
}

// Bit matrices for GF2P8AFFINEQB. Byte 7 - i selects the bits whose sum is bit i of a result; here it selects
// a single bit.
struct BitMoves {
    alignas(32) uint64_t low[5][4] = {}, high[5][4] = {};  // by shift, four times each

    constexpr BitMoves() {
        for (int shift = 0; shift < 5; ++shift) {
            for (int i = 0; i < 8; ++i) {
                if (i >= shift && i < kPieceBits) add(low[shift], i, i - shift);
                const int from = i + kPieceBits - shift;
                add(high[shift], i, from < 7 ? from : 7);  // the sign
            }
        }
    }

   private:
    static constexpr void add(uint64_t (&matrix)[4], int to, int from) {
        for (uint64_t& copy : matrix) copy |= uint64_t{1} << (8 * (7 - to) + from);
    }
};
inline constexpr BitMoves kBitMoves;

// 64 values times 2^shifts[0], the second half times 2^shifts[1].
CHASKI_INLINE Pieces pieces_of_values(const int8_t* values, const int16_t* shifts) {
    const auto load = [&](const uint64_t (&of)[5][4]) __attribute__((always_inline)) {
        const __m256i first = _mm256_load_si256(reinterpret_cast<const __m256i*>(of[shifts[0]]));
        const __m256i second = _mm256_load_si256(reinterpret_cast<const __m256i*>(of[shifts[1]]));
        return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
    };
    const U8x64 x = load_u8(values);
    const __m512i low = transform_bytes(x.v, load(kBitMoves.low));
    const __m512i high = transform_bytes(x.v, load(kBitMoves.high));
    return {{low}, {high}};
}

CHASKI_INLINE U8x64 both_pieces(const Pieces& of) { return {_mm512_add_epi8(of.low.v, of.high.v)}; }

CHASKI_INLINE I32x16 subtract(I32x16 a, I32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }

// 4096 * high + 64 * middle + low.
CHASKI_INLINE I32x16 join_pieces(I32x16 low, I32x16 middle, I32x16 high) {
    const I32x16 upper = shift_left<kPieceBits>(high) + middle;
    return shift_left<kPieceBits>(upper) + low;
}

template <class Format, int kPieces, int kSubBlock>
CHASKI_INLINE void unpack_sub_block(const Format& block, I32x16 scale, uint8_t* slab) {
    using Slab = PiecesSlab<Format::kMinSub, kPieces>;
    unroll<Format::kSub / 4>([&](auto i) __attribute__((always_inline)) {
        constexpr int kLine = kSubBlock * (Format::kSub / 4) + i.value;
        constexpr int kChunkOf = kLine / 16;
        const Pieces pieces =
            pieces_of_codes<Format::kOffset>(block.template codes<kSubBlock, i.value>(), scale);
        uint8_t* line = slab + 64 * (kLine % 16);
        store_u8(line + Slab::lines_of(kChunkOf, kLow), pieces.low);
        store_u8(line + Slab::lines_of(kChunkOf, kHigh), pieces.high);
        if constexpr (kPieces > kBoth) store_u8(line + Slab::lines_of(kChunkOf, kBoth), both_pieces(pieces));
    });
}

template <class Format, int kPieces>
static void unpack_pieces(const uint8_t* panel, int64_t elements, uint8_t* slab) {
    using Slab = PiecesSlab<Format::kMinSub, kPieces>;
    constexpr int kSub = Format::kSub;
    for (int64_t at = 0; at < elements; at += kSuperElements, panel += Format::kBytes, slab += Slab::kBytes) {
        const Format block{{panel}};
        unroll<kSuperElements / kSub / 2>([&](auto p) __attribute__((always_inline)) {
            constexpr int kFirst = first_of_pair<kSub, p.value>;
            const __m512i scales = block.template scales<p.value>().v;
            const __m512i low = _mm512_and_si512(scales, _mm512_set1_epi32(0xffff));
            const __m512i high = _mm512_srli_epi32(scales, 16);
            unpack_sub_block<Format, kPieces, kFirst>(
                block, {_mm512_or_si512(low, _mm512_slli_epi32(low, 16))}, slab);
            unpack_sub_block<Format, kPieces, kFirst + kPairStep<kSub>>(
                block, {_mm512_or_si512(high, _mm512_slli_epi32(high, 16))}, slab);
        });
        // Clang looks up `mins` even in a body that is never called.
        if constexpr (Slab::kMinPairs > 0)
            unroll<Slab::kMinPairs>([&](auto p) __attribute__((always_inline)) {
                store_i32(reinterpret_cast<int32_t*>(slab + Slab::kMins + 64 * p),
                          block.template mins<p.value>());
            });
        store_f32(reinterpret_cast<float*>(slab + Slab::kD), block.d());
        if constexpr (Format::kMins) store_f32(reinterpret_cast<float*>(slab + Slab::kDMin), block.dmin());
    }
}
#endif

}  // namespace chaski::CHASKI_ISA
