// Attention in integers: keys, values and queries have 16 bits and a scale for each row, weights have 12 to
// 15 bits and a scale for each block of 64. Sums of products are exact in 32 bits, so their order does not
// matter. A processor that multiplies pairs of int16 does two products in the time of one float product.
//
// The rule, for x of `size` elements (float32 arithmetic, round to nearest even):
//   factor = min(46000 / length of x, 32767 / max |x|) for keys and queries, 8191 / max |x| for values
//   q(x) = round(x · factor);  scale = 1 / factor
//   score = float(sum q(query) · q(key)) · (scale of the key · scale of the query)
//   weights of a block: u = weight · scale of v;  factor = min(32767 / max u, 262080 / sum u), or
//     65472 / sum u if values are parts of keys
//   q(u) = round(u · factor);  step = 1 / factor
//   y = fma(float(sum q(u) · q(value)), step, y), block after block
// By Cauchy-Schwarz, no sum of products of q and k is much over 46000². (262080 + 32) · 8191 < 2^31, and so
// is (65472 + 32) · 32767. A row counts as zero if all its magnitudes are below 1e-15. Its scale is NaN if a
// magnitude is over 1e15 or NaN.
//
// For normally distributed keys of 64 elements, the rounding error is a quarter of that of half precision,
// whose error grows with the size of a number.
#pragma once

#include <cmath>
#include <limits>

#include "storage.h"

namespace chaski::CHASKI_ISA {

constexpr float kKeyLength = 46000.0f, kKeyLimit = 32767.0f, kValueLimit = 8191.0f;
constexpr float kWeightLimit = 32767.0f, kWeightSum = 262080.0f, kWeightSumForKeys = 65472.0f;

// True if a row with this largest magnitude can be divided by it and has a finite, nonzero length.
CHASKI_INLINE bool is_usable(float amax) { return amax >= 1e-15f && amax <= 1e15f; }

// The scale of an unusable row: 0 for a row that is nearly zero, else NaN, which shows in results.
CHASKI_INLINE float unusable_scale(float amax) {
    return amax < 1e-15f ? 0.0f : std::numeric_limits<float>::quiet_NaN();
}

// Quantizes a row and returns its scale. `quantized` has room for a multiple of 16.
inline float quantize_row(const float* x, std::int64_t size, bool is_value, std::int16_t* quantized) {
    auto part = [&](std::int64_t i) __attribute__((always_inline)) {
        return size - i < kLanes ? load_f32(x + i, static_cast<int>(size - i)) : load_f32(x + i);
    };
    I32x16 bits = splat(0);
    F32x16 squares = splat(0.0f);
    for (std::int64_t i = 0; i < size; i += kLanes) {
        bits = max(bits, magnitude_bits(part(i)));
        squares = fma(part(i), part(i), squares);
    }
    const float amax = __builtin_bit_cast(float, reduce_max(bits));
    if (!is_usable(amax)) {
        std::memset(quantized, 0, size * sizeof(std::int16_t));
        return unusable_scale(amax);
    }
    float factor = kValueLimit / amax;
    if (!is_value) {
        const float by_length = kKeyLength / std::sqrt(sum_lanes(squares)), by_size = kKeyLimit / amax;
        factor = by_length < by_size ? by_length : by_size;
    }
    for (std::int64_t i = 0; i < size; i += kLanes) {
        store_i16(quantized + i, round_to_i32(part(i) * splat(factor)));
    }
    return 1.0f / factor;
}

}  // namespace chaski::CHASKI_ISA
