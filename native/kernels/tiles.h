// Sizes of register tiles, P panels (16 rows each) by N tokens, for the registers of the instruction set, and
// of the blocking around them, for the caches.
#pragma once

#include "simd.h"

namespace chaski::CHASKI_ISA {

// From kUnpackedTokens tokens on, quantized weights may be unpacked to memory first; with more than
// kStreamTokens tokens they always are. Super-blocks have three sums for each panel and token, and their own
// tiles: kSuperTilePanels by kSuperTileTokens. Up to kStreamTokens (kFloatStreamTokens), weights are unpacked
// in registers, with kStreamTile tokens at a time and without a slab. kFloatGroup panels of floats are
// widened together. Products of two bf16 pass kPairPanels by kPairTile tokens.
#if defined(__AVX512VNNI__)  // 32 registers, one per vector
inline constexpr int kTilePanels = 2, kTileTokens = 6, kSuperTilePanels = 2, kSuperTileTokens = 4;
inline constexpr int kFloatPanels = 4, kFloatTokens = 6, kFloatGroup = 4;
inline constexpr int kStreamTile = 4, kStreamTokens = 12, kUnpackedTokens = 4;
inline constexpr int kFloatStreamTile = 8, kFloatStreamTokens = 16, kPairPanels = 2, kPairTile = 8;
#elif defined(CHASKI_NEON)  // 32 registers, four for each
inline constexpr int kTilePanels = 1, kTileTokens = 3, kSuperTilePanels = 1, kSuperTileTokens = 2;
inline constexpr int kFloatPanels = 1, kFloatTokens = 6, kFloatGroup = 8;
inline constexpr int kStreamTile = 2, kStreamTokens = 6, kUnpackedTokens = 4;
inline constexpr int kFloatStreamTile = 2, kFloatStreamTokens = 2, kPairPanels = 1, kPairTile = 4;
// kStreamTokens for processors with matrix products of int8, where unpacking pays off earlier.
inline constexpr int kI8mmStreamTokens = 3;
#elif defined(__AVX2__)     // 16 registers, two for each
inline constexpr int kTilePanels = 1, kTileTokens = 4, kSuperTilePanels = 1, kSuperTileTokens = 3;
inline constexpr int kFloatPanels = 1, kFloatTokens = 6, kFloatGroup = 8;
inline constexpr int kStreamTile = 2, kStreamTokens = 6, kUnpackedTokens = 4;
inline constexpr int kFloatStreamTile = 2, kFloatStreamTokens = 2, kPairPanels = 1, kPairTile = 4;
#else                       // small code, quick to compile
inline constexpr int kTilePanels = 1, kTileTokens = 2, kSuperTilePanels = 1, kSuperTileTokens = 2;
inline constexpr int kFloatPanels = 1, kFloatTokens = 2, kFloatGroup = 8;
inline constexpr int kStreamTile = 1, kStreamTokens = 0, kUnpackedTokens = 1;
inline constexpr int kFloatStreamTile = 1, kFloatStreamTokens = 2, kPairPanels = 1, kPairTile = 2;
#endif

// True if the registers hold two panels of super-blocks with three sums for each token of a stream tile. Then
// kPairedTokens or more tokens can pass two panels at a time.
inline constexpr bool kHasPairs = kSuperTilePanels == 2;
inline constexpr int kPairedTokens = 4;

// The gated delta net: tiles of tokens with two rows of sums each, by vectors; a single token uses more
// vectors.
#if defined(__AVX512VNNI__)
inline constexpr int kDeltaTokens = 3, kDeltaVectors = 4, kDeltaAloneVectors = 4;
#elif defined(__AVX2__) || defined(CHASKI_NEON)
inline constexpr int kDeltaTokens = 3, kDeltaVectors = 1, kDeltaAloneVectors = 2;
#else
inline constexpr int kDeltaTokens = 1, kDeltaVectors = 1, kDeltaAloneVectors = 1;
#endif

// Calls f(first, size) for n tokens in the longest parts of at most kTile tokens; `size` is a compile-time
// constant. No part is shorter than kLeast, for the numbers of tokens that occur.
template <int kSize, int kLeast, class F>
CHASKI_INLINE void with_size(int64_t size, const F& f) {
    if constexpr (kSize > kLeast) {
        if (size < kSize) return with_size<kSize - 1, kLeast>(size, f);
    }
    f(Index<kSize>{});
}
template <int kTile, int kLeast = 1, class F>
CHASKI_INLINE void for_parts(int64_t n, const F& f) {
    const int64_t parts = (n + kTile - 1) / kTile;
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t first = n * part / parts;
        with_size<kTile, kLeast>(n * (part + 1) / parts - first, [&](auto size) { f(first, size); });
    }
}

// Up to this many tokens, hardware prefetchers keep up with the products of floats, and prefetching by
// instructions only costs time.
inline constexpr int kAloneTokens = 5;

inline constexpr int kGroupPanels = 24;  // panels that are unpacked together
inline constexpr int kTokenBlock = 256;  // tokens that pass before the next panels are unpacked

}  // namespace chaski::CHASKI_ISA
