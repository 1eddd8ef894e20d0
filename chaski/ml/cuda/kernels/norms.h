// The norm of a row of CHASKI_ROW elements by a thread block. Each of 16 lanes adds up every 16th element,
// and then the lanes are added over a fixed tree.
#pragma once

#include "quantize.h"

namespace chaski::CHASKI_ISA {

constexpr int kSize = CHASKI_ROW;

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

// The elements of a row that one of kThreads threads has: kRounds times kEach neighbours.
template <int kThreads>
struct Elements {
    static constexpr int kRounds = (kSize + kThreads * kEach - 1) / (kThreads * kEach);

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

// The norm of the elements x. `row` has room for a row in shared memory, and the result of a sum. Threads
// that have no elements call it, too.
template <int kThreads>
CHASKI_INLINE void rms_norm_of(Elements<kThreads>& x, const Elements<kThreads>& weight, float eps, float* row,
                               bool has_elements) {
    if (has_elements) x.share(row);
    const float scale = by_first_warp(row + kRowFloats, [&] { return inverse_length(row, eps); });
    for (int round = 0; round < x.kRounds; ++round) {
        for (int j = 0; j < kEach; ++j) x.x[round][j] = x.x[round][j] * scale * weight.x[round][j];
    }
}

}  // namespace chaski::CHASKI_ISA
