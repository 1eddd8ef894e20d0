// What matrix kernels work on: a packed weight matrix, activations, and where results go. Plain data, no
// owners.
//
// The numeric rule ("same answer"): every kernel computes exactly this, whatever the instruction set, the
// number of tokens, or the split over threads.
//
//   Activations, per token, in blocks of 32 along k (float32 arithmetic, round to nearest even):
//     amax = max |x|;  scale = amax / 127;  q = round(x * (127 / amax)) as int8
//     or in powers of two: scale = the least 2^e >= amax / 127;  q = round(x / scale)
//     amax below 1e-36 counts as zero: scale = 0, q = 0. A NaN or infinity in x makes the scale NaN or
//     infinite.
//   A product with a power of two only moves an exponent, which some processors do beside their
//   multiplications. It rounds x half again as much on the whole, which nobody sees beside weights of six
//   bits and fewer, whose own rounding is several times that. Weights of a quantized type, per row, in blocks
//   of 32 (16 for Q2_K, Q3_K, Q6_K): value = scale * (code - offset) - min y = 0; for each weight block in
//   ascending k:
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
    int8_t* values;          // [n][k]
    float* scales;           // [n][k / 32]
    int16_t* sums;           // [n][k / 16]: sums of `values`
    const float* floats;     // [n][k]
    bool in_powers = false;  // of two: what scales are, or are to be
};

// y[token * y_stride + row] for the rows of the panels that were asked for.
struct Output {
    float* y;
    int64_t y_stride;
    const float* bias;      // [rows] or null
    const float* residual;  // laid out like y, may be y itself, or null
};

}  // namespace chaski
