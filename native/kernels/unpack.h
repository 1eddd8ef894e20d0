// Panels unpacked to a form that is the same for all formats: the *slab*, which the matmul kernels for many
// tokens read.
//
//   slab        |sub-block 0|sub-block 1|...                        sub-blocks of 32 or 16 elements along k
//   sub-block   |codes: a 64-byte line for every 4 elements|scales of 16 rows: 64 bytes|mins, if any: 64
//   bytes| line        |4 codes of row 0|4 codes of row 1|...|4 codes of row 15|        weight = scale *
//   (code - offset) - min
//
// Of float types: a line of 16 floats, one of each row, for every element.
#pragma once

#include "panel.h"
#include "simd.h"

namespace chaski::CHASKI_ISA {

// Unpacks `elements` of k, whole blocks, from the address of the first block of 16 rows.
using Unpack = void (*)(const uint8_t* panel, int64_t elements, uint8_t* slab);

struct Unpacker {
    DType type;
    int sub;  // elements of a sub-block
    bool mins;
    int offset;
    int max_code;
    int block_elements;  // what unpacking takes at least
    Unpack unpack;
    // The same with codes less the offset, as signed bytes; null where no kernel wants it.
    Unpack unpack_centred;
};

const Unpacker& unpacker_of(DType type);

template <int kSub, bool kMins>
inline constexpr int kSubBytes = kLanes * kSub + 64 + (kMins ? 64 : 0);

}  // namespace chaski::CHASKI_ISA
