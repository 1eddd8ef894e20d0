// The operands of matrix kernels: a packed weight matrix, activations, and the destination of results. They
// own no memory.
//
// The numeric rule ("same answer"): every kernel computes exactly the following, whatever the instruction
// set, the number of tokens, or the division among threads.
//
//   Activations, per token, in blocks of 32 along k (float32 arithmetic, round to nearest even):
//     amax = max |x|;  scale = amax / 127;  q = round(x * (127 / amax)) as int8
//     amax below 1e-36 counts as zero: scale = 0, q = 0. A NaN or infinity in x makes the scale NaN or
//     infinite.
//   or in super-blocks of 256, whose blocks of 32 have scales that differ by powers of two:
//     whole = amax / 127 of all 256;  scale = whole / 16 * 2^shift, shift 0 to 4;  q = round(x * (1 / scale))
//     with the least shift for which max |x| * (16 / (127 * whole)) <= 2^shift (or 4) and sum |q| <= 1023
//     over each 16 elements. If even 4 is not enough, whole *= sum / 1007, and all blocks start again.
//     amax below 1e-34 counts as zero.
//
//   Weights of a quantized type, per row, in blocks of 32: value = scale * (code - offset) - min
//   y = 0; for each weight block in ascending k:
//     isum = sum (code - offset) * q                       exact, int32
//     y = fma(float(isum), scale * activation scale, y)
//     y = fma(min, -(activation scale * float(sum q)), y)  types with mins only
//
//   Weights of a type with super-blocks (Q2_K to Q6_K), whose scales and mins are integers times d and dmin:
//   y = 0; for each 256 elements in ascending k, of blocks j of 32 or 16:
//     products = sum over j of scale_j * 2^shift_j * sum (code - offset) * q     exact, int32
//     mins     = sum over j of min_j * 2^shift_j * sum q                         exact, int32
//     y = fma(fma(float(mins), -dmin, d * float(products)), whole / 16, y)       without the inner fma for
//   types without mins. The limit of sums |q| lets the innermost sums fit 16 bits (32 * 1023 < 2^15), so
//   that one instruction multiplies two of them; the rest cannot exceed 2^30 (128 * 2^4 * 32 * 1023 * 16).
//
//   Weights of types F32 and F16, widened to float32: y = 0; for each k, ascending: y = fma(weight, x, y)
//   Weights of type BF16: x is rounded to bf16, to nearest even. y = 0; for each two k, ascending, the second
//   before the first: y = fma(weight, x, y). Subnormal numbers, read or computed, are zeros. The x86
//   instruction VDPBF16PS does the same. A missing second k of the last pair counts as 0 * 0.
//   Last: y + bias, then + residual, if given.
#pragma once

#include <cstdint>

#include "panel.h"

namespace chaski {

// The version of the rule, and of everything else that determines bits of results. Results that outlive a
// process are stored with it. Any change of a bit of any result requires a new version.
inline constexpr int kRuleVersion = 2;

inline constexpr int kSuperElements = 256;

// True if products with weights of that type need activations in super-blocks; others accept both forms.
[[maybe_unused]] static constexpr bool wants_super_blocks(DType type) {
    return type >= DType::Q2_K && type <= DType::Q6_K;
}

// A matrix of `rows` rows and `k` columns in panels (see panel.h), 64-byte aligned.
struct Matrix {
    DType type;
    int64_t rows;
    int64_t k;
    const uint8_t* panels;
};

// The numbers of a super-block of activations in addition to the scales and sums of its blocks of 32.
struct SuperScale {
    float unit;  // whole / 16, the scale of blocks whose shift is 0
    int16_t shifts[kSuperElements / 32];
    int16_t sums[kSuperElements / 32];  // of values, times 2^shift
};

// Activations of n tokens. Quantized matrices read all members except `floats`, float matrices only `floats`;
// the rest may be null.
struct Activations {
    int8_t* values;                // [n][k]
    float* scales;                 // [n][k / 32]
    int16_t* sums;                 // [n][k / 16]: sums of `values`
    const float* floats;           // [n][k]
    SuperScale* supers = nullptr;  // [n][k / 256] for activations in super-blocks
};

// A range of memory.
struct Stretch {
    const void* place;
    int64_t bytes;
};

// y[token * y_stride + row] for the rows of the requested panels.
struct Output {
    float* y;
    int64_t y_stride;
    const float* bias;      // [rows] or null
    const float* residual;  // laid out like y, may be y itself, or null
    // Bytes that later work on the same panels reads. A kernel that leaves memory idle prefetches them.
    const Stretch* later = nullptr;
    int64_t num_later = 0;
};

}  // namespace chaski
