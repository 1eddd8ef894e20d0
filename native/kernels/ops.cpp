// Norms, sums and rotation. Compiled once per instruction set.
//
// All loops run over 16 lanes, whatever the width of a register, and sums are taken per lane and then over a
// fixed tree. So a row has the same bits in every batch, and nearly always on every instruction set.

#include "ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention_kernel.h"
#include "formulas.h"
#include "hadamard.h"
#include "map.h"
#include "vector_math.h"

namespace chaski::CHASKI_ISA {
namespace {

// The sum of f(x) over a row; f must give zero for the lanes after its end, which are zero.
template <class F>
float row_sum(const float* x, std::int64_t size, F f) {
    std::int64_t whole = whole_lanes(size);
    F32x16 sum = splat(0.0f);
    for (std::int64_t i = 0; i < whole; i += kLanes) sum = f(load_f32(x + i), sum);
    if (whole < size) sum = f(load_f32(x + whole, static_cast<int>(size - whole)), sum);
    return sum_lanes(sum);
}

void rms_norm(const float* x, const float* weight, float eps, std::int64_t size, float* y) {
    float squares = row_sum(x, size, [](F32x16 v, F32x16 sum) { return fma(v, v, sum); });
    F32x16 scale = splat(1.0f / std::sqrt(squares / static_cast<float>(size) + eps));
    if (weight == nullptr) {
        map(size, y, [&](F32x16 v) { return v * scale; }, x);
    } else {
        map(size, y, [&](F32x16 v, F32x16 w) { return v * scale * w; }, x, weight);
    }
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, std::int64_t size,
                float* y) {
    float mean = row_sum(x, size, [](F32x16 v, F32x16 sum) { return v + sum; }) / static_cast<float>(size);
    F32x16 means = splat(mean);
    map(size, y, [&](F32x16 v) { return v - means; }, x);
    float squares = row_sum(y, size, [](F32x16 v, F32x16 sum) { return fma(v, v, sum); });
    F32x16 scale = splat(1.0f / std::sqrt(squares / static_cast<float>(size) + eps));
    map(size, y, [&](F32x16 v, F32x16 w) { return v * scale * w; }, y, weight);
    if (bias == nullptr) return;
    map(size, y, [&](F32x16 v, F32x16 b) { return v + b; }, y, bias);
}

void scale(const float* x, float factor, std::int64_t count, float* y) {
    map(count, y, [&](F32x16 v) { return v * splat(factor); }, x);
}

void add(const float* a, const float* b, std::int64_t count, float* y) {
    map(count, y, [](F32x16 u, F32x16 v) { return u + v; }, a, b);
}

void add_scaled(float* y, const float* x, float factor, std::int64_t count) {
    map(count, y, [&](F32x16 u, F32x16 v) { return fma(u, splat(factor), v); }, x, y);
}

void softmax(const float* x, std::int64_t count, float* y) {
    const F32x16 highest = splat(*std::max_element(x, x + count));
    map(count, y, [&](F32x16 v) { return exp(v - highest); }, x);
    const F32x16 total = splat(row_sum(y, count, [](F32x16 v, F32x16 sum) { return v + sum; }));
    map(count, y, [&](F32x16 v) { return v / total; }, y);
}

void sigmoids(const float* x, std::int64_t count, float* y) {
    map(count, y, [](F32x16 v) { return sigmoid(v); }, x);
}

void exponentials(const float* x, float highest, std::int64_t count, float* y) {
    map(count, y, [&](F32x16 v) { return exp(v - splat(highest)); }, x);
}

double exponential_sum(const float* x, float highest, std::int64_t count) {
    double sums[kLanes] = {};
    float parts[kLanes];
    for (std::int64_t i = 0; i < count; i += kLanes) {
        const int size = static_cast<int>(std::min<std::int64_t>(kLanes, count - i));
        exponentials(x + i, highest, size, parts);
        for (int lane = 0; lane < size; ++lane) sums[lane] += parts[lane];
    }
    for (int half = kLanes / 2; half > 0; half /= 2) {
        for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
    }
    return sums[0];
}

void lane_maxima(const float* x, std::int64_t count, float* maxima) {
    F32x16 highest = splat(-std::numeric_limits<float>::infinity());
    I32x16 magnitude = splat(0);  // comparing floats loses a NaN; comparing bits finds it
    std::int64_t whole = whole_lanes(count);
    for (std::int64_t i = 0; i < whole; i += kLanes) {
        F32x16 v = load_f32(x + i);
        highest = max(highest, v);
        magnitude = max(magnitude, magnitude_bits(v));
    }
    store_f32(maxima, highest);
    for (std::int64_t i = whole; i < count; ++i) maxima[i - whole] = std::max(maxima[i - whole], x[i]);
    constexpr std::int32_t kInfinity = 0x7f800000;
    bool has_nan = reduce_max(magnitude) > kInfinity;
    for (std::int64_t i = whole; i < count; ++i) has_nan |= std::isnan(x[i]);
    if (has_nan) std::fill_n(maxima, kLanes, std::numeric_limits<float>::quiet_NaN());
}

}  // namespace

void rope(const float* x, const float* cos, const float* sin, std::int64_t heads, std::int64_t size,
          std::int64_t pairs, bool neox, float* y) {
    const std::int64_t step = neox ? 1 : 2, apart = neox ? pairs : 1;
    for (std::int64_t head = 0; head < heads; ++head, x += size, y += size) {
        for (std::int64_t j = 0; j < pairs; ++j) {
            float first = x[step * j];
            float second = x[step * j + apart];
            y[step * j] = first * cos[j] - second * sin[j];
            y[step * j + apart] = first * sin[j] + second * cos[j];
        }
        std::memmove(y + 2 * pairs, x + 2 * pairs, (size - 2 * pairs) * sizeof(float));
    }
}

namespace {

using Floats4 = float __attribute__((vector_size(16)));

// Sums and differences of 2 · h elements from x on; h is at least 4.
void add_and_subtract(float* x, std::int64_t h) {
    for (std::int64_t i = 0; i < h; i += 4) {
        const auto a = read<Floats4>(x + i), b = read<Floats4>(x + h + i);
        write(x + i, a + b);
        write(x + h + i, a - b);
    }
}

}  // namespace

void hadamard(const float* x, std::int64_t count, std::int64_t block, float* y) {
    const float scale = hadamard_scale(block);
    for (std::int64_t first = 0; first < count; first += block) {
        float* own = y + first;
        for (std::int64_t i = 0; i < block; i += 4) {  // h = 1 and h = 2
            const auto a = read<Floats4>(x + first + i);
            const Floats4 pairs =
                __builtin_shufflevector(a, a, 0, 0, 2, 2) + __builtin_shufflevector(a, -a, 1, 5, 3, 7);
            write(own + i, __builtin_shufflevector(pairs, pairs, 0, 1, 0, 1) +
                               __builtin_shufflevector(pairs, -pairs, 2, 3, 6, 7));
        }
        for (std::int64_t h = 4; h < block; h *= 2) {
            for (std::int64_t i = 0; i < block; i += 2 * h) add_and_subtract(own + i, h);
        }
        for (std::int64_t i = 0; i < block; i += 4) write(own + i, read<Floats4>(own + i) * scale);
    }
}

extern const Elementwise kElementwise[];
extern const Ops kOps;
const Ops kOps = {
    .elementwise = kElementwise,
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .scale = scale,
    .add = add,
    .add_scaled = add_scaled,
    .softmax = softmax,
    .sigmoid = sigmoids,
    .exponentials = exponentials,
    .exponential_sum = exponential_sum,
    .lane_maxima = lane_maxima,
    .rope = rope,
    .hadamard = hadamard,
    .store = store_cells,
    .load = load_cell,
    .copy = copy_cells,
    .rotate = rotate_cell,
    .attention_scratch = attention_scratch,
    .attention = attention,
    .attention_chunk = attention_chunk,
    .attention_join = attention_join,
    .index_scores = index_scores,
    .gated_delta_scratch = gated_delta_scratch,
    .gated_delta = gated_delta,
    .selective_scan = selective_scan,
    .generalized_delta = generalized_delta,
    .lora_down = lora_down,
    .lora_up = lora_up,
};

}  // namespace chaski::CHASKI_ISA
