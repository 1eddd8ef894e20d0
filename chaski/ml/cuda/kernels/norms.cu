// Norms of rows of CHASKI_SIZE elements. A thread block computes one row. Each of 16 lanes adds up every 16th
// element, and then the lanes are added over a fixed tree.
#include "quantize.h"

namespace chaski::CHASKI_ISA {

constexpr int kSize = CHASKI_SIZE;

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

// A row in shared memory, lane by lane, with zeros after its end, so that a lane adds up consecutive
// elements. The distances are such that neither writing neighbours nor reading lanes use a bank twice.
constexpr int kPositions = (kSize + kLanes - 1) / kLanes;  // of a lane
constexpr int kStride = 4 * ((kPositions + 3) / 4 | 1);
constexpr int kRowFloats = kLanes * kStride + 16;

CHASKI_INLINE int place_of(uint32_t element) {
    const uint32_t lane = element % kLanes;
    return static_cast<int>(lane * kStride + lane / 8 * 16 + element / kLanes);
}

// Returns the result of `f` on the first warp to all threads. `f` begins after the row is in shared memory.
template <class F>
CHASKI_INLINE float by_first_warp(float* result, const F& f) {
    barrier();
    if (threadIdx.x < 32) {
        const float found = f();
        if (threadIdx.x == 0) *result = found;
    }
    barrier();
    return *result;
}

// The sum over a row, first for each lane and then over lanes, by a warp whose halves do the same work. A
// lane reads well before it adds. A lane after the end of a row has an additional zero, which may turn -0
// into +0.
template <class F>
CHASKI_INLINE float row_sum(const float* row, const F& f) {
    constexpr int kAhead = 16, kEvenly = kPositions / (2 * kAhead) * 2 * kAhead;
    const float* own = row + place_of(lane());
    float sum = 0.0f;
    if constexpr (kEvenly > 0) {
        float even[kAhead], odd[kAhead];
        load_each(own, even);
#pragma unroll 1
        for (int i = 0; i < kEvenly; i += 2 * kAhead) {
            load_each(own + i + kAhead, odd);
            for (const float v : even) sum = f(v, sum);
            load_each(own + (i + 2 * kAhead < kEvenly ? i + 2 * kAhead : 0), even);
            for (const float v : odd) sum = f(v, sum);
        }
    }
    for (int i = kEvenly; i < kPositions; i += 4) {
        float four[4];
        load_each(own + i, four);
        for (int j = 0; j < 4 && i + j < kPositions; ++j) sum = f(four[j], sum);
    }
    for (int apart = 8; apart > 0; apart /= 2) sum = sum + device::from_thread(sum, apart);
    return sum;
}

CHASKI_INLINE float inverse_length(const float* row, float eps) {
    const float squares = row_sum(row, [](float v, float sum) { return device::fma(v, v, sum); });
    return 1.0f / device::square_root(squares / static_cast<float>(kSize) + eps);
}

// The elements of a row that a thread has: kRounds times kEach neighbours. The lowering computes the same
// number of threads.
constexpr int kThreads = kSize > 8192 ? 1024 : (kSize + 255) / 256 * 32;
constexpr int kRounds = (kSize + kThreads * kEach - 1) / (kThreads * kEach);
struct Elements {
    float x[kRounds][kEach];

    CHASKI_INLINE static int first(int round) {
        return (round * kThreads + static_cast<int>(threadIdx.x)) * kEach;
    }
    CHASKI_INLINE void load(const float* from, float other) {
        for (int round = 0; round < kRounds; ++round) {
            const int i = first(round);
            for (float& v : x[round]) v = other;
            if (from == nullptr) continue;
            if constexpr (kSize % kEach == 0) {
                if (i < kSize) load_each(from + i, x[round]);
            } else {
                for (int j = 0; j < kEach; ++j) {
                    if (i + j < kSize) x[round][j] = from[i + j];
                }
            }
        }
    }
    CHASKI_INLINE void store(float* to) const {
        for (int round = 0; round < kRounds; ++round) {
            const int i = first(round);
            if constexpr (kSize % kEach == 0) {
                if (i < kSize) store_each(to + i, x[round]);
            } else {
                for (int j = 0; j < kEach; ++j) {
                    if (i + j < kSize) to[i + j] = x[round][j];
                }
            }
        }
    }
    // Writes the elements to shared memory.
    CHASKI_INLINE void share(float* row) const {
        for (int round = 0; round < kRounds; ++round) {
            const int i = first(round);
            if (i >= kPositions * kLanes) continue;
            for (int j = 0; j < kEach; ++j) {
                row[place_of(i) + j * kStride] = kSize % kLanes == 0 || i + j < kSize ? x[round][j] : 0.0f;
            }
        }
    }
};

// Writes the results of a row that begins with element `at` of all rows.
CHASKI_INLINE void finish(const Norm& a, const Elements& y, int64_t at) {
    if (a.y != nullptr) y.store(a.y + at);
    if (a.quantized.values == nullptr) return;
    for (int round = 0; round < kRounds; ++round) {
        const int i = Elements::first(round);
        quantize(y.x[round], at + i, i < kSize, a.quantized);
    }
}

// Shared memory: a row, and the result of a sum. Rows that may not exist are read safely, because the plan
// has room for all rows of a launch.
CHASKI_KERNEL(rms_norm, Norm) {
    auto* row = reinterpret_cast<float*>(device::shared());
    const int64_t rows = *a.n * a.heads, at = static_cast<int64_t>(blockIdx.x) * kSize;
    Elements x, weight;
    x.load(a.x + at, 0.0f);
    weight.load(a.weight, 1.0f);
    if (static_cast<int64_t>(blockIdx.x) >= rows) return;
    x.share(row);
    const float scale = by_first_warp(row + kRowFloats, [&] { return inverse_length(row, a.eps); });
    for (int round = 0; round < kRounds; ++round) {
        for (int j = 0; j < kEach; ++j) x.x[round][j] = x.x[round][j] * scale * weight.x[round][j];
    }
    finish(a, x, at);
}

CHASKI_KERNEL(layer_norm, Norm) {
    auto* row = reinterpret_cast<float*>(device::shared());
    float* result = row + kRowFloats;
    const int64_t rows = *a.n * a.heads, at = static_cast<int64_t>(blockIdx.x) * kSize;
    Elements x, weight, bias;
    x.load(a.x + at, 0.0f);
    weight.load(a.weight, 1.0f);
    bias.load(a.bias, 0.0f);
    if (static_cast<int64_t>(blockIdx.x) >= rows) return;
    x.share(row);
    const float mean = by_first_warp(result, [&] {
        return row_sum(row, [](float v, float sum) { return v + sum; }) / static_cast<float>(kSize);
    });
    for (int round = 0; round < kRounds; ++round) {
        for (int j = 0; j < kEach; ++j) x.x[round][j] = x.x[round][j] - mean;
    }
    x.share(row);
    const float scale = by_first_warp(result, [&] { return inverse_length(row, a.eps); });
    for (int round = 0; round < kRounds; ++round) {
        for (int j = 0; j < kEach; ++j) {
            const float y = x.x[round][j] * scale * weight.x[round][j];
            x.x[round][j] = a.bias == nullptr ? y : y + bias.x[round][j];
        }
    }
    finish(a, x, at);
}

}  // namespace chaski::CHASKI_ISA
