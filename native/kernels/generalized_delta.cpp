// The generalized delta rule: the rule of order is in generalized_delta.h.
#include "generalized_delta.h"

#include <algorithm>

#include "attention_kernel.h"
#include "vector_math.h"

namespace chaski::CHASKI_ISA {
namespace {

// V vectors of columns of one head. The state of the target row changes from token to token.
template <int V, bool kCorrects>
CHASKI_INLINE void advance(const GeneralizedDelta& job, const Segment& segment, std::int64_t head,
                           std::int64_t column) {
    const std::int64_t rows = job.key_size(), columns = job.columns();
    auto state = [&](std::int32_t cell) {
        return reinterpret_cast<float*>(job.states.row(head, cell)) + column;
    };
    const float* source = state(segment.source);
    float* s = state(segment.target);
    for (std::int64_t i = 0; i < rows; ++i) std::copy_n(source + i * columns, V * kLanes, s + i * columns);
    for (std::int64_t t = segment.begin; t < segment.end; ++t) {
        const std::int64_t key = (t * job.heads() + head) * rows;
        const std::int64_t value = (t * job.heads() + head) * job.value_size + column;
        F32x16 v[V], y[V], c[V];
#pragma GCC unroll 8
        for (int n = 0; n < V; ++n) {
            const std::int64_t count = job.value_size - column - n * kLanes;
            v[n] =
                load_f32(job.v + value + n * kLanes, static_cast<int>(std::min<std::int64_t>(count, kLanes)));
            y[n] = c[n] = splat(0.0f);
        }
        if constexpr (kCorrects) {
            for (std::int64_t i = 0; i < rows; ++i) {
                const F32x16 a = splat(job.a[key + i]);
#pragma GCC unroll 8
                for (int n = 0; n < V; ++n) c[n] = fma(a, load_f32(s + i * columns + n * kLanes), c[n]);
            }
        }
        for (std::int64_t i = 0; i < rows; ++i) {
            const F32x16 w = splat(job.w[key + i]), k = splat(job.k[key + i]), r = splat(job.r[key + i]);
#pragma GCC unroll 8
            for (int n = 0; n < V; ++n) {
                float* place = s + i * columns + n * kLanes;
                F32x16 next = fma(w, load_f32(place), k * v[n]);
                if constexpr (kCorrects) next = fma(splat(job.b[key + i]), c[n], next);
                store_f32(place, next);
                y[n] = fma(r, next, y[n]);
            }
        }
#pragma GCC unroll 8
        for (int n = 0; n < V; ++n) {
            const std::int64_t count = job.value_size - column - n * kLanes;
            store_f32(job.y + value + n * kLanes, y[n],
                      static_cast<int>(std::min<std::int64_t>(count, kLanes)));
        }
    }
}

template <int V>
void advance(const GeneralizedDelta& job, const Segment& segment, std::int64_t head, std::int64_t column) {
    if (job.a != nullptr) {
        advance<V, true>(job, segment, head, column);
    } else {
        advance<V, false>(job, segment, head, column);
    }
}

}  // namespace

void generalized_delta(const GeneralizedDelta& job, const Segment& segment, std::int64_t head,
                       std::int64_t begin, std::int64_t end) {
    constexpr int kTogether = 4;
    std::int64_t column = begin;
    for (; column + kTogether * kLanes <= end; column += kTogether * kLanes) {
        advance<kTogether>(job, segment, head, column);
    }
    for (; column < end; column += kLanes) advance<1>(job, segment, head, column);
}

}  // namespace chaski::CHASKI_ISA
