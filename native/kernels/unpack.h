// Unpacks panels to the *slab*, a layout that is the same for all formats. The matmul kernels for many tokens
// read it.
//
//   line          |4 codes of row 0|4 codes of row 1|...|4 codes of row 15|      64 bytes, for 4 elements of
//   k block of 32   |codes: 8 lines|scales of 16 rows: 64 bytes|mins, if any: 64 bytes|
//                   |codes: 8 lines|scales of elements 0 to 15|of elements 16 to 31|     for blocks of 16
//                                                            weight = scale * (code - offset) - min
//   super-block   |codes: 64 lines|scales of pairs|mins of pairs, if any|d|dmin, if any|      64 bytes each
//                                                            weight = d * scale * (code - offset) + dmin *
//                                                            min
//
// The codes of a super-block are in the order of its pairs of sub-blocks (blocks.h). Float types have a line
// of 16 floats, one per row, for every element.
#pragma once

#include "matmul.h"
#include "simd.h"

namespace chaski::CHASKI_ISA {

// Unpacks `elements` of k, whole blocks, from the address of the first block of 16 rows.
using Unpack = void (*)(const uint8_t* panel, int64_t elements, uint8_t* slab);

struct Unpacker {
    DType type;
    int sub;  // elements of a sub-block
    bool mins;
    int min_sub;  // of super-blocks only: elements that share a min, or 0
    int offset;
    int max_code;
    int block_elements;  // the least that can be unpacked
    Unpack unpack;
    // The same for tile registers: codes less the offset, as signed bytes, or pieces (pieces.h); null without
    // tile registers.
    Unpack unpack_for_tiles;
    // The same with three pieces, of types with super-blocks.
    Unpack unpack_three_pieces;
    // Codes less the offset as int16: lines of 2 codes of 16 rows each, then scales. For 8-bit codes on
    // instruction sets that multiply int16 faster; else null.
    Unpack unpack_words;
    // Row `lane` of a block's slab as floats; only for quantized types.
    void (*read_lane)(const uint8_t* slab, int lane, float* out);
};

const Unpacker& unpacker_of(DType type);

template <bool kMins, int kSub = 32>
inline constexpr int kBlockBytes = kLanes * 32 + 64 * (32 / kSub) + (kMins ? 64 : 0);

inline constexpr int kWordBlockBytes = 2 * kLanes * 32 + 64;

template <int kSub, int kMinSub>
struct SuperSlab {
    static constexpr int kPairs = kSuperElements / kSub / 2;
    static constexpr int kMinPairs = kMinSub == 0 ? 0 : kSuperElements / kMinSub / 2;
    // Offsets of the slab's parts, and its size.
    static constexpr int kScales = kLanes * kSuperElements;
    static constexpr int kMins = kScales + 64 * kPairs;
    static constexpr int kD = kMins + 64 * kMinPairs;
    static constexpr int kDMin = kD + 64;
    static constexpr int kBytes = kMinSub == 0 ? kDMin : kDMin + 64;
};

}  // namespace chaski::CHASKI_ISA
