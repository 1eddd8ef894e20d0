// LoRA adapters: narrow pairs of matrices that change what a matrix of the model makes of some rows
// (Hu et al. 2021).
//
// The numeric rule: y of a row is finished first, W x + bias by the rule of matmul.h, without a residual.
// Then, for each adapter of the row in the order of its request, in float32, with x as it was before any
// rounding:
//
//   s_j = 0; for each k = j, j + 4, j + 8, ...: s_j = fma(A[r][k], x[k], s_j)      j = 0 to 3
//   t_r = ((s_0 + s_1) + (s_2 + s_3)) * scale
//   for each r, ascending: y_i = fma(B[i][r], t_r, y_i)
//
// where elements of A and B are widened to float32, and scale is alpha / rank times the scale of the request,
// each as float32 and so multiplied. A k after the end, where columns are no multiple of 4,
// counts nothing. Last: y + residual, where given. So a row's result depends neither on the other rows of its
// batch nor on their adapters, and a row without adapters is what it is in a plan without them.
#pragma once

#include <cstdint>

#include "panel.h"

namespace chaski {

// A and B of one adapter for one matrix (rows, columns), in panels of 16 rows: element (r, c) of either is at
// [r / 16][c][r % 16], and rows that are missing from the last panel are zeros. Types are F32, F16 or BF16.
// The rank is 0 where the adapter does not change that matrix.
struct Lora {
    std::int64_t rank = 0;
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    float scale = 0.0f;  // alpha / rank
    DType type_a = DType::F32;
    DType type_b = DType::F32;
    const std::byte* a = nullptr;
    const std::byte* b = nullptr;

    std::int64_t rank_panels() const { return num_panels(rank); }
};

// A row of activations, and what one adapter makes of it.
struct LoraRow {
    const float* x;
    float* t;  // [rank, rounded up to 16]
    float* y;
    float scale;  // of the pair and of the request together
};

}  // namespace chaski
