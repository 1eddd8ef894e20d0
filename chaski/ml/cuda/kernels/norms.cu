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

// The sum over a row, lane by lane, and then over lanes. Elements are read well before they are needed.
template <class F>
CHASKI_INLINE float row_sum(const float* row, int size, const F& f) {
    constexpr int kAhead = 16;
    const int whole = size / (kAhead * kLanes) * kAhead * kLanes;
    float sum = 0.0f, next[kAhead];
    if (whole > 0) {
        for (int j = 0; j < kAhead; ++j) next[j] = row[j * kLanes + lane()];
    }
    for (int i = 0; i < whole; i += kAhead * kLanes) {
        float now[kAhead];
        for (int j = 0; j < kAhead; ++j) now[j] = next[j];
        if (i + kAhead * kLanes < whole) {
            for (int j = 0; j < kAhead; ++j) next[j] = row[i + (kAhead + j) * kLanes + lane()];
        }
        for (int j = 0; j < kAhead; ++j) sum = f(now[j], sum);
    }
    for (int i = whole + lane(); i < size; i += kLanes) sum = f(row[i], sum);
    // The lanes behind the end of a row have a zero more, which may turn -0 into +0.
    if (size % kLanes != 0 && lane() >= size % kLanes) sum = f(0.0f, sum);
    return sum_lanes({sum});
}

CHASKI_INLINE float inverse_length(const float* row, int size, float eps) {
    const float squares = row_sum(row, size, [](float v, float sum) { return device::fma(v, v, sum); });
    return 1.0f / device::square_root(squares / static_cast<float>(size) + eps);
}

// The elements of a row that a thread has: kRounds times kEach neighbours.
constexpr int kRounds = CHASKI_ROUNDS;
struct Elements {
    float x[kRounds][kEach];

    CHASKI_INLINE static int first(int round) {
        return static_cast<int>(round * blockDim.x + threadIdx.x) * kEach;
    }
    CHASKI_INLINE void load(const float* from, int size, float other) {
        for (int round = 0; round < kRounds; ++round) {
            const int i = first(round);
            if (from != nullptr && size % kEach == 0 && i < size) {
                load_each(from + i, x[round]);
                continue;
            }
            for (int j = 0; j < kEach; ++j)
                x[round][j] = from != nullptr && i + j < size ? from[i + j] : other;
        }
    }
    CHASKI_INLINE void store(float* to, int size) const {
        for (int round = 0; round < kRounds; ++round) {
            const int i = first(round);
            if (size % kEach == 0) {
                if (i < size) store_each(to + i, x[round]);
                continue;
            }
            for (int j = 0; j < kEach && i + j < size; ++j) to[i + j] = x[round][j];
        }
    }
};

// Where results of a row go that begins with element `at` of all rows.
CHASKI_INLINE void finish(const Norm& a, const Elements& y, int64_t at) {
    const auto size = static_cast<int>(a.size);
    if (a.y != nullptr) y.store(a.y + at, size);
    if (a.quantized.values == nullptr) return;
    for (int round = 0; round < kRounds; ++round) {
        const int i = static_cast<int>(round * blockDim.x + threadIdx.x) * kEach;
        quantize(y.x[round], at + i, i < size, a.quantized);
    }
}

// Shared memory: a row, and the result of a sum.
CHASKI_KERNEL(rms_norm, Norm) {
    if (static_cast<int64_t>(blockIdx.x) >= *a.n * a.heads) return;
    auto* row = reinterpret_cast<float*>(device::shared());
    const int64_t at = static_cast<int64_t>(blockIdx.x) * a.size;
    const auto size = static_cast<int>(a.size);
    Elements x, weight;
    x.load(a.x + at, size, 0.0f);
    weight.load(a.weight, size, 1.0f);
    x.store(row, size);
    const float scale = by_first_group(row + size, [&] { return inverse_length(row, size, a.eps); });
    for (int round = 0; round < kRounds; ++round) {
        for (int j = 0; j < kEach; ++j) x.x[round][j] = x.x[round][j] * scale * weight.x[round][j];
    }
    finish(a, x, at);
}

CHASKI_KERNEL(layer_norm, Norm) {
    if (static_cast<int64_t>(blockIdx.x) >= *a.n * a.heads) return;
    auto* row = reinterpret_cast<float*>(device::shared());
    float* result = row + a.size;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * a.size;
    const auto size = static_cast<int>(a.size);
    Elements x, weight, bias;
    x.load(a.x + at, size, 0.0f);
    weight.load(a.weight, size, 1.0f);
    bias.load(a.bias, size, 0.0f);
    x.store(row, size);
    const float mean = by_first_group(result, [&] {
        return row_sum(row, size, [](float v, float sum) { return v + sum; }) / static_cast<float>(size);
    });
    for (int round = 0; round < kRounds; ++round) {
        for (int j = 0; j < kEach; ++j) x.x[round][j] = x.x[round][j] - mean;
    }
    x.store(row, size);
    const float scale = by_first_group(result, [&] { return inverse_length(row, size, a.eps); });
    for (int round = 0; round < kRounds; ++round) {
        for (int j = 0; j < kEach; ++j) {
            const float y = x.x[round][j] * scale * weight.x[round][j];
            x.x[round][j] = a.bias == nullptr ? y : y + bias.x[round][j];
        }
    }
    finish(a, x, at);
}

}  // namespace chaski::CHASKI_ISA
