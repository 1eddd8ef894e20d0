// Norms of rows. A block of threads has one row; its first 16 lanes add up, each every 16th element, and then
// all of them over a fixed tree.
#include "quantize.h"

namespace chaski::CHASKI_ISA {

struct Norm {
    const float* x;
    Count n;
    int64_t heads;  // rows of a token
    int64_t size;
    const float* weight;
    const float* bias;
    float eps;
    float* y;  // or null
    Quantized quantized;
};

// What group 0 finds by `f`, in all threads; `f` begins after the row is in shared memory.
template <class F>
CHASKI_INLINE float by_first_group(float* result, const F& f) {
    barrier();
    if (group() == 0) {
        const float found = f();
        if (lane() == 0) *result = found;
    }
    barrier();
    return *result;
}

// A row in shared memory, which begins with element `at` of all rows.
CHASKI_INLINE void quantize_row(const float* row, int64_t at, int64_t size, const Quantized& to) {
    if (to.values == nullptr) return;
    barrier();
    for (int64_t begin = 0; begin < size; begin += blockDim.x * kEach) {
        const int64_t i = begin + threadIdx.x * kEach;
        float x[kEach];
        for (int j = 0; j < kEach; ++j) x[j] = i < size ? row[i + j] : 0.0f;
        quantize(x, at + i, i < size, to);
    }
}

// The sum over a row, lane by lane, and then over lanes.
template <class F>
CHASKI_INLINE float row_sum(const float* row, int64_t size, const F& f) {
    float sum = 0.0f;
#pragma unroll 16
    for (int64_t i = lane(); i < size; i += kLanes) sum = f(row[i], sum);
    // The lanes behind the end of a row have a zero more, which may turn -0 into +0.
    if (size % kLanes != 0 && lane() >= size % kLanes) sum = f(0.0f, sum);
    return sum_lanes({sum});
}

CHASKI_INLINE float inverse_length(const float* row, int64_t size, float eps) {
    const float squares = row_sum(row, size, [](float v, float sum) { return device::fma(v, v, sum); });
    return 1.0f / device::square_root(squares / static_cast<float>(size) + eps);
}

// Shared memory: a row, and the result of a sum.
CHASKI_KERNEL(rms_norm, Norm) {
    if (static_cast<int64_t>(blockIdx.x) >= *a.n * a.heads) return;
    auto* row = reinterpret_cast<float*>(device::shared());
    const int64_t at = static_cast<int64_t>(blockIdx.x) * a.size;
    for (int64_t i = threadIdx.x; i < a.size; i += blockDim.x) row[i] = a.x[at + i];
    const float scale = by_first_group(row + a.size, [&] { return inverse_length(row, a.size, a.eps); });
    for (int64_t i = threadIdx.x; i < a.size; i += blockDim.x) {
        const float y = a.weight == nullptr ? row[i] * scale : row[i] * scale * a.weight[i];
        if (a.y != nullptr) a.y[at + i] = y;
        row[i] = y;
    }
    quantize_row(row, at, a.size, a.quantized);
}

CHASKI_KERNEL(layer_norm, Norm) {
    if (static_cast<int64_t>(blockIdx.x) >= *a.n * a.heads) return;
    auto* row = reinterpret_cast<float*>(device::shared());
    float* result = row + a.size;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * a.size;
    for (int64_t i = threadIdx.x; i < a.size; i += blockDim.x) row[i] = a.x[at + i];
    const float mean = by_first_group(result, [&] {
        return row_sum(row, a.size, [](float v, float sum) { return v + sum; }) / static_cast<float>(a.size);
    });
    for (int64_t i = threadIdx.x; i < a.size; i += blockDim.x) row[i] = row[i] - mean;
    const float scale = by_first_group(result, [&] { return inverse_length(row, a.size, a.eps); });
    for (int64_t i = threadIdx.x; i < a.size; i += blockDim.x) {
        const float y = row[i] * scale * a.weight[i];
        row[i] = a.bias == nullptr ? y : y + a.bias[i];
        if (a.y != nullptr) a.y[at + i] = row[i];
    }
    quantize_row(row, at, a.size, a.quantized);
}

}  // namespace chaski::CHASKI_ISA
