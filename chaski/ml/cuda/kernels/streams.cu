// Several residual streams (hyper-connections). native/steps/streams.h defines the operations.
#include "softmax.h"

namespace chaski::CHASKI_ISA {

struct MixStreams {
    const float* x;  // [row][stream][element]
    Count n;
    const float* weights;  // [row][stream][output]
    int64_t streams;
    int64_t outputs;
    int64_t size;
    float* y;  // [row][output][element]
};

// There is a thread for each element of the outputs.
CHASKI_KERNEL(mix_streams, MixStreams) {
    const int64_t i = thread(), element = i % a.size, output = i / a.size % a.outputs;
    const int64_t row = i / a.size / a.outputs;
    if (row >= *a.n) return;
    const float* x = a.x + row * a.streams * a.size + element;
    const float* weights = a.weights + row * a.streams * a.outputs + output;
    float sum = x[0] * weights[0];
    for (int64_t s = 1; s < a.streams; ++s) sum = device::fma(x[s * a.size], weights[s * a.outputs], sum);
    a.y[i] = sum;
}

struct Sinkhorn {
    const float* x;  // [row][size][size]
    Count n;
    int64_t size;
    int64_t iterations;
    float eps;
    float* y;
};

// Divides the lines of a matrix by their sums plus eps; a lane has every 16th line. Neighbours in a line are
// `step` apart.
CHASKI_INLINE void divide_by_sums(const Sinkhorn& a, float* matrix, int64_t lines, int64_t line,
                                  int64_t step) {
    barrier();
    for (int64_t i = lane(); i < lines; i += kLanes) {
        float* own = matrix + i * line;
        float sum = 0.0f;
        for (int64_t j = 0; j < a.size; ++j) sum += own[j * step];
        sum += a.eps;
        for (int64_t j = 0; j < a.size; ++j) own[j * step] /= sum;
    }
}

// There is a group of 16 lanes for each row.
CHASKI_KERNEL(sinkhorn, Sinkhorn) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * num_groups() + group();
    const int64_t lines = row < *a.n ? a.size : 0;  // groups without a row keep company
    const int64_t first = row * a.size * a.size;
    float* matrix = a.y + first;
    for (int64_t line = 0; line < lines; ++line) {
        float* own = matrix + line * a.size;
        for (int64_t i = lane(); i < a.size; i += kLanes) own[i] = a.x[first + line * a.size + i];
        softmax(own, a.size);
        for (int64_t i = lane(); i < a.size; i += kLanes) own[i] += a.eps;
    }
    divide_by_sums(a, matrix, lines, 1, a.size);
    for (int64_t iteration = 1; iteration < a.iterations; ++iteration) {
        divide_by_sums(a, matrix, lines, a.size, 1);
        divide_by_sums(a, matrix, lines, 1, a.size);
    }
}

}  // namespace chaski::CHASKI_ISA
