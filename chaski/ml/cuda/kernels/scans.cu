// Layers whose state passes from token to token: the selective scan and the generalized delta rule, whose
// rules of order are in native/include/selective_scan.h and generalized_delta.h.
//
// A thread has a column of a state in shared memory, where the columns of a row follow each other.
#include "segments.h"

namespace chaski::CHASKI_ISA {

// Element n of this thread's column.
CHASKI_INLINE float& element(int64_t n) {
    return reinterpret_cast<float*>(device::shared())[n * blockDim.x + threadIdx.x];
}

// Calls scan(segment, first state, last state) for the segments of the sequence that begins in segment number
// `index`, in order. Each one begins where the one before it ended. Other segments are computed with those.
template <class F>
CHASKI_INLINE void for_sequence(const Segment* segments, int64_t count, int64_t index, const F& scan) {
    if (index >= count || segments[index].begin != segments[index].first) return;
    const int32_t first = segments[index].first;
    int32_t source = segments[index].source;
    for (; index < count && segments[index].first == first; ++index) {
        scan(segments[index], source, segments[index].target);
        source = segments[index].target;
    }
}

struct SelectiveScan {
    const float* x;   // [token][channel]
    const float* dt;  // [token][channel]
    const float* b;   // [token][state]
    const float* c;   // [token][state]
    const Segment* segments;
    Count num_segments;
    const float* a;  // [state][channel]
    Storage states;  // a head for each row of a state
    float* y;        // [token][channel]
};

// There is a thread for each channel, and a row of thread blocks for each segment.
CHASKI_KERNEL(selective_scan, SelectiveScan) {
    const int64_t channels = a.states.size, size = a.states.heads, channel = thread();
    if (channel >= channels) return;
    for_sequence(a.segments, *a.num_segments, blockIdx.y, [&](const Segment& of, int32_t from, int32_t to) {
        for (int64_t n = 0; n < size; ++n) element(n) = row_of(a.states, n, from)[channel];
        for (int64_t t = of.begin; t < of.end; ++t) {
            const float dt = a.dt[t * channels + channel];
            const float x = dt * a.x[t * channels + channel];
            float y = 0.0f;
#pragma unroll 4
            for (int64_t n = 0; n < size; ++n) {
                const float decay = exp(F32x16{dt * a.a[n * channels + channel]}).v;
                const float next = device::fma(decay, element(n), x * a.b[t * size + n]);
                element(n) = next;
                y = device::fma(next, a.c[t * size + n], y);
            }
            a.y[t * channels + channel] = y;
        }
        for (int64_t n = 0; n < size; ++n) row_of(a.states, n, to)[channel] = element(n);
    });
}

struct GeneralizedDelta {
    const float* r;  // [token][head][key size]
    const float* w;
    const float* k;
    const float* v;  // [token][head][value size]
    const Segment* segments;
    Count num_segments;
    Storage states;  // [head] [key size][columns]
    const float* a;  // null, and b too, for a rule without them
    const float* b;
    int64_t key_size;
    int64_t value_size;
    float* y;
};

// There is a thread for each column of a state, and thread blocks for each head and each segment.
template <bool kCorrects>
CHASKI_INLINE void advance(const GeneralizedDelta& a) {
    const int64_t size = a.key_size, columns = a.states.size / size, column = thread(), head = blockIdx.y;
    if (column >= columns) return;
    const bool is_value = column < a.value_size;
    for_sequence(a.segments, *a.num_segments, blockIdx.z, [&](const Segment& of, int32_t from, int32_t to) {
        for (int64_t i = 0; i < size; ++i) element(i) = row_of(a.states, head, from)[i * columns + column];
        for (int64_t t = of.begin; t < of.end; ++t) {
            const int64_t row = t * a.states.heads + head, key = row * size;
            const float v = is_value ? a.v[row * a.value_size + column] : 0.0f;
            float correction = 0.0f, y = 0.0f;
            if constexpr (kCorrects) {
#pragma unroll 8
                for (int64_t i = 0; i < size; ++i) {
                    correction = device::fma(a.a[key + i], element(i), correction);
                }
            }
#pragma unroll 8
            for (int64_t i = 0; i < size; ++i) {
                float next = device::fma(a.w[key + i], element(i), a.k[key + i] * v);
                if constexpr (kCorrects) next = device::fma(a.b[key + i], correction, next);
                element(i) = next;
                y = device::fma(a.r[key + i], next, y);
            }
            if (is_value) a.y[row * a.value_size + column] = y;
        }
        for (int64_t i = 0; i < size; ++i) row_of(a.states, head, to)[i * columns + column] = element(i);
    });
}

CHASKI_KERNEL(generalized_delta, GeneralizedDelta) {
    if (a.a == nullptr) {
        advance<false>(a);
    } else {
        advance<true>(a);
    }
}

}  // namespace chaski::CHASKI_ISA
