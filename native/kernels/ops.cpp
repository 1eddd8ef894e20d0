// Norms, activations, sum and rotation. Compiled once per instruction set.
//
// All loops go over 16 lanes, whatever the width of a register, and sums are taken per lane and then over a
// fixed tree. So a row has the same bits in every batch, and nearly always for every instruction set.

#include "ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention_kernel.h"
#include "vector_math.h"

namespace chaski::CHASKI_ISA {
namespace {

std::int64_t whole_lanes(std::int64_t count) { return count / kLanes * kLanes; }

// f(x) for `count` elements.
template <class F>
void map1(const float* x, std::int64_t count, float* y, F f) {
    std::int64_t whole = whole_lanes(count);
    for (std::int64_t i = 0; i < whole; i += kLanes) store_f32(y + i, f(load_f32(x + i)));
    if (int rest = static_cast<int>(count - whole); rest > 0) {
        store_f32(y + whole, f(load_f32(x + whole, rest)), rest);
    }
}

// The sum of f(x) over a row; f must give zero for the lanes behind its end, which are zero.
template <class F>
float row_sum(const float* x, std::int64_t size, F f) {
    std::int64_t whole = whole_lanes(size);
    F32x16 sum = splat(0.0f);
    for (std::int64_t i = 0; i < whole; i += kLanes) sum = f(load_f32(x + i), sum);
    if (whole < size) sum = f(load_f32(x + whole, static_cast<int>(size - whole)), sum);
    return sum_lanes(sum);
}

// f(a, b) for `count` elements; the tail goes through the same 16-lane code.
template <class F>
void map2(const float* a, const float* b, std::int64_t count, float* y, F f) {
    std::int64_t whole = whole_lanes(count);
    for (std::int64_t i = 0; i < whole; i += kLanes) {
        store_f32(y + i, f(load_f32(a + i), load_f32(b + i)));
    }
    if (int rest = static_cast<int>(count - whole); rest > 0) {
        store_f32(y + whole, f(load_f32(a + whole, rest), load_f32(b + whole, rest)), rest);
    }
}

void rms_norm(const float* x, const float* weight, float eps, std::int64_t size, float* y) {
    float squares = row_sum(x, size, [](F32x16 v, F32x16 sum) { return fma(v, v, sum); });
    F32x16 scale = splat(1.0f / std::sqrt(squares / static_cast<float>(size) + eps));
    if (weight == nullptr) {
        map1(x, size, y, [&](F32x16 v) { return v * scale; });
    } else {
        map2(x, weight, size, y, [&](F32x16 v, F32x16 w) { return v * scale * w; });
    }
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, std::int64_t size,
                float* y) {
    float mean = row_sum(x, size, [](F32x16 v, F32x16 sum) { return v + sum; }) / static_cast<float>(size);
    F32x16 means = splat(mean);
    map1(x, size, y, [&](F32x16 v) { return v - means; });
    float squares = row_sum(y, size, [](F32x16 v, F32x16 sum) { return fma(v, v, sum); });
    F32x16 scale = splat(1.0f / std::sqrt(squares / static_cast<float>(size) + eps));
    map2(y, weight, size, y, [&](F32x16 v, F32x16 w) { return v * scale * w; });
    map2(y, bias, size, y, [&](F32x16 v, F32x16 b) { return v + b; });
}

CHASKI_INLINE F32x16 sigmoid(F32x16 x) { return splat(1.0f) / (splat(1.0f) + exp(-x)); }

void swiglu(const float* gate, const float* up, std::int64_t count, float* y) {
    F32x16 one = splat(1.0f);
    map2(gate, up, count, y, [&](F32x16 g, F32x16 u) { return g / (one + exp(-g)) * u; });
}

// 0.5 g (1 + tanh(t)) is g · sigmoid(2 t).
CHASKI_INLINE F32x16 gelu_by_tanh(F32x16 g) {
    constexpr float kTwice = 1.5957691216f;  // 2 sqrt(2 / pi)
    F32x16 t = splat(kTwice) * fma(splat(0.044715f) * g * g, g, g);
    return g * sigmoid(t);
}

void geglu(const float* gate, const float* up, std::int64_t count, float* y) {
    map2(gate, up, count, y, [](F32x16 g, F32x16 u) { return gelu_by_tanh(g) * u; });
}

void gelu_tanh(const float* x, std::int64_t count, float* y) { map1(x, count, y, gelu_by_tanh); }

void clamped_swiglu(const float* gate, const float* up, float alpha, float limit, std::int64_t count,
                    float* y) {
    map2(gate, up, count, y, [&](F32x16 g, F32x16 u) {
        g = min(splat(limit), g);
        u = min(splat(limit), max(splat(-limit), u));
        return g * sigmoid(splat(alpha) * g) * (u + splat(1.0f));
    });
}

// Φ(x) = erfc(-x / sqrt 2) / 2, and for t >= 0 erfc(t) = p(1 / (1 + 0.3275911 t)) e^(-t²) with a polynomial p
// (Abramowitz and Stegun 7.1.26).
void gelu(const float* x, std::int64_t count, float* y) {
    map1(x, count, y, [](F32x16 v) {
        F32x16 t = max(v, -v) * splat(0.70710678f);
        F32x16 k = splat(1.0f) / fma(splat(0.3275911f), t, splat(1.0f));
        F32x16 p = splat(1.061405429f);
        p = fma(p, k, splat(-1.453152027f));
        p = fma(p, k, splat(1.421413741f));
        p = fma(p, k, splat(-0.284496736f));
        p = fma(p, k, splat(0.254829592f));
        F32x16 tail = splat(0.5f) * p * k * exp(-(t * t));  // 1 - Φ(|x|)
        return max(v, splat(0.0f)) - max(v, -v) * tail;
    });
}

void softcap(const float* x, float cap, std::int64_t count, float* y) {
    map1(x, count, y, [&](F32x16 v) { return bounded(v, cap); });
}

void scale(const float* x, float factor, std::int64_t count, float* y) {
    map1(x, count, y, [&](F32x16 v) { return v * splat(factor); });
}

void add(const float* a, const float* b, std::int64_t count, float* y) {
    map2(a, b, count, y, [](F32x16 u, F32x16 v) { return u + v; });
}

void multiply(const float* a, const float* b, std::int64_t count, float* y) {
    map2(a, b, count, y, [](F32x16 u, F32x16 v) { return u * v; });
}

void add_scaled(float* y, const float* x, float factor, std::int64_t count) {
    map2(x, y, count, y, [&](F32x16 u, F32x16 v) { return fma(u, splat(factor), v); });
}

void lane_maxima(const float* x, std::int64_t count, float* maxima) {
    F32x16 highest = splat(-std::numeric_limits<float>::infinity());
    I32x16 magnitude = splat(0);  // comparing floats loses a NaN, comparing their bits finds it
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

extern const Ops kOps;
const Ops kOps = {
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .swiglu = swiglu,
    .geglu = geglu,
    .clamped_swiglu = clamped_swiglu,
    .gelu = gelu,
    .gelu_tanh = gelu_tanh,
    .softcap = softcap,
    .scale = scale,
    .multiply = multiply,
    .add = add,
    .add_scaled = add_scaled,
    .lane_maxima = lane_maxima,
    .rope = rope,
    .store = store_cell,
    .load = load_cell,
    .rotate = rotate_cell,
    .attention_scratch = attention_scratch,
    .attention = attention,
    .attention_chunk = attention_chunk,
    .attention_join = attention_join,
};

}  // namespace chaski::CHASKI_ISA
