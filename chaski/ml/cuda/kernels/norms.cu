// Norms of rows. A thread block computes one row.
#include "norms.h"

namespace chaski::CHASKI_ISA {

struct Norm {
    const float* x;
    Count n;
    int64_t heads;  // rows of a token
    const float* weight;
    const float* bias;
    float eps;
    float* y;  // or null
    Quantized quantized;
};

// The lowering computes the same number of threads.
constexpr int kThreads = kSize > 8192 ? 1024 : (kSize + 255) / 256 * 32;

// Writes the results of a row that begins with element `at` of all rows.
CHASKI_INLINE void finish(const Norm& a, const Elements<kThreads>& y, int64_t at) {
    if (a.y != nullptr) y.store(a.y + at);
    if (a.quantized.values == nullptr) return;
    for (int round = 0; round < y.kRounds; ++round) {
        const int i = y.first(round);
        quantize(y.x[round], at + i, i < kSize, a.quantized);
    }
}

// Shared memory: a row, and the result of a sum. Rows that may not exist are read safely, because the plan
// has room for all rows of a launch.
CHASKI_KERNEL(rms_norm, Norm) {
    auto* row = reinterpret_cast<float*>(device::shared());
    const int64_t rows = *a.n * a.heads, at = static_cast<int64_t>(blockIdx.x) * kSize;
    Elements<kThreads> x, weight;
    x.load(a.x + at, 0.0f);
    weight.load(a.weight, 1.0f);
    if (static_cast<int64_t>(blockIdx.x) >= rows) return;
    rms_norm_of(x, weight, a.eps, row, true);
    finish(a, x, at);
}

CHASKI_KERNEL(layer_norm, Norm) {
    auto* row = reinterpret_cast<float*>(device::shared());
    float* result = row + kRowFloats;
    const int64_t rows = *a.n * a.heads, at = static_cast<int64_t>(blockIdx.x) * kSize;
    Elements<kThreads> x, weight, bias;
    x.load(a.x + at, 0.0f);
    weight.load(a.weight, 1.0f);
    bias.load(a.bias, 0.0f);
    if (static_cast<int64_t>(blockIdx.x) >= rows) return;
    x.share(row);
    const float mean = by_first_warp(result, [&] {
        return row_sum(row, [](float v, float sum) { return v + sum; }) / static_cast<float>(kSize);
    });
    for (int round = 0; round < x.kRounds; ++round) {
        for (int j = 0; j < kEach; ++j) x.x[round][j] = x.x[round][j] - mean;
    }
    x.share(row);
    const float scale = by_first_warp(result, [&] { return inverse_length(row, a.eps); });
    for (int round = 0; round < x.kRounds; ++round) {
        for (int j = 0; j < kEach; ++j) {
            const float y = x.x[round][j] * scale * weight.x[round][j];
            x.x[round][j] = a.bias == nullptr ? y : y + bias.x[round][j];
        }
    }
    finish(a, x, at);
}

}  // namespace chaski::CHASKI_ISA
