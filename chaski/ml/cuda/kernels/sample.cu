// Samples a token from the top logits of each row: `chaski.sample.transforms` defines the steps. Weights are
// whole numbers, whose sums do not depend on their order.
#include "kernel.h"

namespace chaski::CHASKI_ISA {

// The same fields as those of `ops.sample`.
struct Chance {
    int32_t random;
    float temperature;  // 0 takes the largest logit
    double top_p;
    double min_p;
};

struct Sample {
    const float* top;  // [row][logits, ids][max_k]
    Count n;
    int64_t max_k;
    int64_t size;           // the most logits that a row has
    const int32_t* counts;  // of each row
    const Chance* chances;
    float* y;  // [row]: the id
};

constexpr double kTopWeight = 8589934592.0;  // 2^33

// Returns the place that a random number picks, from `count` weights in descending order. The first weight is
// above 0.
CHASKI_INLINE int drawn(const uint64_t* weights, int count, const Chance& chance) {
    uint64_t total = 0;
#pragma unroll 8
    for (int i = 0; i < count; ++i) total += weights[i];
    if (chance.top_p < 1.0) {
        const double mass = (chance.top_p > 0.0 ? chance.top_p : 0.0) * static_cast<double>(total);
        total = 0;
        for (int i = 0; i < count; ++i) {
            total += weights[i];
            if (static_cast<double>(total) > mass) count = i + 1;
        }
    }
    if (chance.min_p > 0.0) {
        const double least = (chance.min_p < 1.0 ? chance.min_p : 1.0) * static_cast<double>(weights[0]);
        total = 0;
        int kept = 0;
        for (; kept < count && static_cast<double>(weights[kept]) >= least; ++kept) total += weights[kept];
        count = kept;
    }
    const auto random = static_cast<uint64_t>(static_cast<uint32_t>(chance.random));
    uint64_t left = (random * total + 0xffffff) >> 24;
    left = left < 1 ? 1 : left;
    int place = 0;
    for (; place < count - 1 && weights[place] < left; ++place) left -= weights[place];
    return place;
}

// There is a warp for each row.
CHASKI_KERNEL(sample, Sample) {
    const int64_t row = blockIdx.x, n = *a.n;
    if (row >= n) return;
    auto* weights = reinterpret_cast<uint64_t*>(device::shared());
    const float* logits = a.top + row * 2 * a.max_k;
    const Chance chance = a.chances[row];
    const auto count = static_cast<int>(a.counts[row] < a.size ? a.counts[row] : a.size);
    const auto own = static_cast<int>(threadIdx.x);
    int place = 0;
    const float highest =
        chance.temperature > 0.0f && count > 0 ? logits[0] / chance.temperature : infinity();
    // Without a finite logit the host refuses to sample.
    const bool draws = magnitude_bits({highest}).v < 0x7f800000;
    if (draws) {
        for (int i = own; i < count; i += 32) {
            const float power = exp(F32x16{logits[i] / chance.temperature - highest}).v;
            weights[i] = static_cast<uint64_t>(static_cast<double>(power) * kTopWeight);
        }
    }
    barrier();
    if (own != 0) return;
    if (draws) place = drawn(weights, count, chance);
    a.y[row] = count > 0 ? logits[a.max_k + place] : 0.0f;
}

}  // namespace chaski::CHASKI_ISA
