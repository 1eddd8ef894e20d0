// Norm, activation, sum and rotation. Compiled once per instruction set.
//
// All loops go over 16 lanes, whatever the width of a register, and sums are taken per lane and then over a
// fixed tree. So a row has the same bits in every batch, and nearly always for every instruction set.

#include "ops.h"

#include <cmath>
#include <cstring>

#include "attention_kernel.h"
#include "vector_math.h"

namespace chaski::CHASKI_ISA {
namespace {

std::int64_t whole_lanes(std::int64_t count) { return count / kLanes * kLanes; }

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
    std::int64_t whole = whole_lanes(size);
    F32x16 squares = splat(0.0f);
    for (std::int64_t i = 0; i < whole; i += kLanes) {
        F32x16 v = load_f32(x + i);
        squares = fma(v, v, squares);
    }
    if (whole < size) {
        F32x16 v = load_f32(x + whole, static_cast<int>(size - whole));
        squares = fma(v, v, squares);
    }
    float scale = 1.0f / std::sqrt(sum_lanes(squares) / static_cast<float>(size) + eps);
    F32x16 scales = splat(scale);
    map2(x, weight, size, y, [&](F32x16 v, F32x16 w) { return v * scales * w; });
}

void swiglu(const float* gate, const float* up, std::int64_t count, float* y) {
    F32x16 one = splat(1.0f);
    map2(gate, up, count, y, [&](F32x16 g, F32x16 u) { return g / (one + exp(-g)) * u; });
}

void add(const float* a, const float* b, std::int64_t count, float* y) {
    map2(a, b, count, y, [](F32x16 u, F32x16 v) { return u + v; });
}

}  // namespace

void rope(const float* x, const float* cos, const float* sin, std::int64_t heads, std::int64_t size,
          std::int64_t pairs, float* y) {
    for (std::int64_t head = 0; head < heads; ++head, x += size, y += size) {
        for (std::int64_t j = 0; j < pairs; ++j) {
            float even = x[2 * j];
            float odd = x[2 * j + 1];
            y[2 * j] = even * cos[j] - odd * sin[j];
            y[2 * j + 1] = even * sin[j] + odd * cos[j];
        }
        std::memmove(y + 2 * pairs, x + 2 * pairs, (size - 2 * pairs) * sizeof(float));
    }
}

extern const Ops kOps;
const Ops kOps = {
    .rms_norm = rms_norm,
    .swiglu = swiglu,
    .add = add,
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
