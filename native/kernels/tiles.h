// Sizes of register tiles, by what the instruction set can hold: P panels (16 rows each) by N tokens.
#pragma once

#include "simd.h"

namespace chaski::CHASKI_ISA {

#if defined(__AVX512VNNI__)  // 32 registers, one per vector
inline constexpr int kTilePanels = 2, kTileTokens = 6;
inline constexpr int kFloatPanels = 2, kFloatTokens = 12;
inline constexpr int kFloatFewPanels = 4, kFloatFewTokens = 4;
#else  // 16 registers, two per vector
inline constexpr int kTilePanels = 1, kTileTokens = 3;
inline constexpr int kFloatPanels = 1, kFloatTokens = 6;
inline constexpr int kFloatFewPanels = 2, kFloatFewTokens = 2;
#endif

// The next smaller tile for what is left of the tokens.
template <int N>
inline constexpr int kSmallerTile = N > 4   ? 4
                                    : N > 2 ? 2
                                            : 1;

// Up to this many tokens, weights pass through the first-level cache only.
inline constexpr int kFewTokens = 4;

// Weights that are unpacked at a time: they stay in the second-level cache while all tokens pass.
inline constexpr int64_t kSlabBytes = 384 << 10;

}  // namespace chaski::CHASKI_ISA
