// Sizes: register tiles of P panels (16 rows each) by N tokens, by what the instruction set can hold, and the
// blocking around them, by what the caches can.
#pragma once

#include "simd.h"

namespace chaski::CHASKI_ISA {

// Up to kStreamTokens, quantized codes are used as they are unpacked, with kStreamTile tokens at a time; no
// slab is made.
#if defined(__AVX512VNNI__)  // 32 registers, one per vector
inline constexpr int kTilePanels = 2, kTileTokens = 6;
inline constexpr int kFloatPanels = 4, kFloatTokens = 6;
inline constexpr int kStreamTile = 4, kStreamTokens = 12;
#elif defined(__AVX2__) || defined(CHASKI_NEON)  // room for eight vectors: 16 registers, two for each, or 32
inline constexpr int kTilePanels = 1, kTileTokens = 3;
inline constexpr int kFloatPanels = 1, kFloatTokens = 6;
inline constexpr int kStreamTile = 1, kStreamTokens = 1;
#else                                            // small code, quick to compile
inline constexpr int kTilePanels = 1, kTileTokens = 2;
inline constexpr int kFloatPanels = 1, kFloatTokens = 2;
inline constexpr int kStreamTile = 1, kStreamTokens = 0;
#endif

inline constexpr int kGroupPanels = 8;   // panels that are unpacked together
inline constexpr int kTokenBlock = 256;  // tokens that pass before the next panels are unpacked

}  // namespace chaski::CHASKI_ISA
