// Sub-blocks side by side: one vector for each element of 16 of them.
#pragma once

#include "panel.h"
#include "transpose.h"
#include "vector_math.h"

namespace chaski::CHASKI_ISA {

struct alignas(64) Lanes {
    float v[kLanes];
};

CHASKI_INLINE F32x16 size_of(F32x16 x) { return max(x, -x); }

// Four rows of four floats: their columns go to `to`, `to_stride` floats apart.
CHASKI_INLINE void transpose_floats(const float* const (&from)[4], float* to, int64_t to_stride) {
    Dwords4 rows[4], columns[4];
    for (int i = 0; i < 4; ++i) rows[i] = read<Dwords4>(from[i]);
    transpose_4x4(rows, columns);
    for (int i = 0; i < 4; ++i) write(to + to_stride * i, columns[i]);
}

// The elements of up to 16 sub-blocks; missing sub-blocks are zeros.
template <int kElements>
void to_lanes(const float* x, int64_t count, Lanes (&out)[kElements]) {
    static constexpr float kZeros[kElements] = {};
    for (int r = 0; r < kLanes; r += 4) {
        const auto row = [&](int i) { return r + i < count ? x + (r + i) * kElements : kZeros; };
        const float* rows[4] = {row(0), row(1), row(2), row(3)};
        for (int i = 0; i < kElements; i += 4) {
            transpose_floats({rows[0] + i, rows[1] + i, rows[2] + i, rows[3] + i}, out[i].v + r, kLanes);
        }
    }
}

// The inverse, for all 16 sub-blocks.
template <int kElements>
void to_rows(const Lanes (&x)[kElements], float (&out)[kLanes * kElements]) {
    for (int i = 0; i < kElements; i += 4) {
        for (int r = 0; r < kLanes; r += 4) {
            transpose_floats({x[i].v + r, x[i + 1].v + r, x[i + 2].v + r, x[i + 3].v + r},
                             out + r * kElements + i, kElements);
        }
    }
}

}  // namespace chaski::CHASKI_ISA
