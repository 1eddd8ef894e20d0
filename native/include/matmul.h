// What matrix kernels work on: a packed weight matrix, activations, and where results go. Plain data, no
// owners.
//
// The numeric rule ("same answer"): every kernel computes exactly this, whatever the instruction set, the
// number of tokens, or the split over threads.
//
//   Activations, per token, in blocks of 32 along k (float32 arithmetic, round to nearest even):
//     amax = max |x|;  scale = amax / 127;  q = round(x * (127 / amax)) as int8
//     amax below 1e-36 counts as zero: scale = 0, q = 0. A NaN or infinity in x makes the scale NaN or
//     infinite.
//   Weights of a quantized type, per row, in blocks of 32 (16 for Q2_K, Q3_K, Q6_K): value = scale * (code -
//   offset) - min y = 0; for each weight block in ascending k:
//     isum = sum (code - offset) * q                       exact, int32
//     y = fma(float(isum), scale * activation scale, y)
//     y = fma(min, -(activation scale * float(sum q)), y)  types with mins only
//   Weights of type F32 and F16, widened to float32: y = 0; for each k, ascending: y = fma(weight, x, y)
//   Weights of type BF16: x is rounded to bf16, to nearest even. y = 0; for each two k, ascending, the second
//   before the first: y = fma(weight, x, y). Subnormal numbers, read or computed, are zeros. This is what the
//   x86 instruction VDPBF16PS does. A k that is missing from the last two counts as 0 * 0.
//   Last: y + bias, then + residual, where given.
#pragma once

#include <cstdint>

#include "panel.h"

namespace chaski {

// A matrix of `rows` rows and `k` columns in panels (see panel.h), 64-byte aligned.
struct Matrix {
    DType type;
    int64_t rows;
    int64_t k;
    const uint8_t* panels;
};

// Activations of n tokens. Quantized matrices read the first three, float matrices the last; the rest may be
// null.
struct Activations {
    int8_t* values;       // [n][k]
    float* scales;        // [n][k / 32]
    int16_t* sums;        // [n][k / 16]: sums of `values`
    const float* floats;  // [n][k]
};

// y[token * y_stride + row] for the rows of the panels that were asked for.
struct Output {
    float* y;
    int64_t y_stride;
    const float* bias;      // [rows] or null
    const float* residual;  // laid out like y, may be y itself, or null
};

}  // namespace chaski
