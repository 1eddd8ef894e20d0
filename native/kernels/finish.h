// The end of every matmul kernel: bias, residual, and a store of the rows that exist.
#pragma once

#include "matmul.h"
#include "simd.h"

namespace chaski::CHASKI_ISA {

// Stores the results of the 16 rows from `row` on, of which `count` exist, for one token.
CHASKI_INLINE void finish(F32x16 acc, const Output& out, int64_t token, int64_t row, int count) {
    const int64_t at = token * out.y_stride + row;
    if (count == kLanes) {
        if (out.bias) acc = acc + load_f32(out.bias + row);
        if (out.residual) acc = acc + load_f32(out.residual + at);
        store_f32(out.y + at, acc);
    } else {
        if (out.bias) acc = acc + load_f32(out.bias + row, count);
        if (out.residual) acc = acc + load_f32(out.residual + at, count);
        store_f32(out.y + at, acc, count);
    }
}

CHASKI_INLINE int rows_in_panel(const Matrix& w, int64_t panel) {
    const int64_t left = w.rows - kLanes * panel;
    return static_cast<int>(left < kLanes ? left : kLanes);
}

}  // namespace chaski::CHASKI_ISA
