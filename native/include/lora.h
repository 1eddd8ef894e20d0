// LoRA adapters: narrow pairs of matrices that change the product of a model's matrix for some rows (Hu et
// al. 2021).
//
// The numeric rule: first y = W x + bias is computed for a row by the rule of matmul.h, without a residual.
// Then, for each adapter of the row in the order of its request, in float32, with x before any rounding:
//
//   s_j = 0; for each k = j, j + 4, j + 8, ...: s_j = fma(A[r][k], x[k], s_j)      j = 0 to 3
//   t_r = ((s_0 + s_1) + (s_2 + s_3)) * scale
//   for each r, ascending: y_i = fma(B[i][r], t_r, y_i)
//
// where elements of A and B are widened to float32, and scale is the float32 product of alpha / rank and the
// scale of the request. If the number of columns is not a multiple of 4, terms with k after the end are
// skipped. Last: y + residual, if given. So a row's result depends neither on the other rows of its batch nor
// on their adapters, and a row without adapters has the same bits as in a plan without adapters.
#pragma once

#include <cstdint>

#include "panel.h"

namespace chaski {

// A and B of one adapter for one matrix (rows, columns), in panels of 16 rows: element (r, c) of either is at
// [r / 16][c][r % 16], and missing rows of the last panel are zeros. Types are F32, F16 or BF16. The rank is
// 0 if the adapter does not change that matrix.
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

// A row of activations, and the intermediate result of one adapter.
struct LoraRow {
    const float* x;
    float* t;  // [rank, rounded up to 16]
    float* y;
    float scale;  // product of the pair's and the request's scale
};

}  // namespace chaski
