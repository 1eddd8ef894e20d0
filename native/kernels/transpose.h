// Transposition of four by four dwords in 128-bit registers, which every instruction set has.
#pragma once

#include "simd.h"

namespace chaski::CHASKI_ISA {

using Words8 = uint16_t __attribute__((vector_size(16)));
using Dwords4 = uint32_t __attribute__((vector_size(16)));

// Four rows of four dwords: out[j] becomes dword j of the four rows.
CHASKI_INLINE void transpose_4x4(const Dwords4 (&row)[4], Dwords4 (&out)[4]) {
    const Dwords4 a = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
    const Dwords4 b = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
    const Dwords4 c = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
    const Dwords4 d = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
    out[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    out[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    out[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
    out[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

}  // namespace chaski::CHASKI_ISA
