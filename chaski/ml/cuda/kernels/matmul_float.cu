// y = x · Wᵀ + bias + residual for W of F32, F16 or BF16 (CHASKI_WEIGHTS), by the rule in matmul.h: one chain
// of fused multiply-adds along k for each result. A group of 16 lanes computes a panel and kTokens tokens.
#include "experts.h"

namespace chaski::CHASKI_ISA {

struct MatmulFloat {
    const uint8_t* panels;
    int64_t rows;
    float* y;
    const float* bias;
    const float* residual;
    int64_t k;
    const float* x;
    Count n;
    [[no_unique_address]] Experts experts;
};
static_assert(sizeof(MatmulFloat) == 64 + kExpertsBytes, "as a launch packs it");

using Weights = CHASKI_WEIGHTS;
constexpr int kTokens = CHASKI_TOKENS;

// Rounds to nearest, ties to even; subnormal numbers become zeros, and a NaN remains a NaN.
CHASKI_INLINE float to_bf16(float x) {
    const auto u = static_cast<uint32_t>(device::as_int(x));
    const uint32_t magnitude = u & 0x7fffffffu;
    const uint32_t nearest = (u + 0x7fff + (u >> 16 & 1)) >> 16, quiet = u >> 16 | 0x40, zero = u >> 31 << 15;
    const uint32_t rounded = magnitude > 0x7f800000u ? quiet : magnitude < 0x00800000u ? zero : nearest;
    return device::as_float(static_cast<int32_t>(rounded << 16));
}

CHASKI_KERNEL(matmul_float, MatmulFloat) {
    const Share share(a.experts, a.n, kTokens);
    const int64_t panel = static_cast<int64_t>(blockIdx.x) * num_groups() + group();
    if (share.is_empty() || panel >= num_panels(a.rows)) return;
    const uint8_t* lines = a.panels + share.weights() + panel_start(Weights::kType, a.k, panel);
    const float* x[kTokens];
    float y[kTokens];
    for (int i = 0; i < kTokens; ++i) {
        x[i] = a.x + share.source(i) * a.k;
        y[i] = 0.0f;
    }
    if constexpr (Weights::kType == DType::BF16) {
        for (int64_t k = 0; k < a.k; k += 2) {
            const float low = Weights::load(lines, k).v, high = Weights::load(lines, k + 1).v;
            for (int i = 0; i < kTokens; ++i) {
                const float second = k + 1 < a.k ? to_bf16(x[i][k + 1]) : 0.0f;
                y[i] = device::fma_flushed(low, to_bf16(x[i][k]), device::fma_flushed(high, second, y[i]));
            }
        }
    } else {
        for (int64_t k = 0; k < a.k; ++k) {
            const float w = Weights::load(lines, k).v;
            for (int i = 0; i < kTokens; ++i) y[i] = device::fma(w, x[i][k], y[i]);
        }
    }
    const int64_t row = panel * kLanes + lane();
    if (row >= a.rows) return;
    for (int i = 0; i < kTokens && share.begin + i < share.end; ++i) {
        const int64_t at = (share.begin + i) * a.rows + row;
        if (a.bias != nullptr) y[i] = y[i] + a.bias[share.bias(a.rows) + row];
        if (a.residual != nullptr) y[i] = y[i] + a.residual[at];
        a.y[at] = y[i];
    }
}

}  // namespace chaski::CHASKI_ISA
