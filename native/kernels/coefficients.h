// What a run of weight sub-blocks needs from the activations besides their int8 values: one number per token
// and sub-block each, laid out so that kernels broadcast them from memory.
#pragma once

#include "matmul.h"
#include "simd.h"

namespace chaski::CHASKI_ISA {

// Up to kCount sub-blocks of kSub elements, for N tokens. Members that are not needed are left out.
// kPowers: scales are powers of two, and kept as factors for times_power.
template <int kSub, bool kMins, int kCount, int N, bool kStarts = true, bool kPowers = false>
struct Coefficients {
    alignas(
        64) int32_t start[N][kStarts ? kCount : 1];  // -bias * sum of values: where the integer sum starts
    alignas(64) float scale[N][kCount];
    alignas(64) float sum[N][kMins ? kCount : 1];  // -(scale * sum of values), which multiplies the min

    // For `count` sub-blocks from `element` of k on, tokens from `token` on.
    CHASKI_INLINE void fill(const Activations& x, int64_t k, int64_t token, int64_t element, int count,
                            int bias) {
        fill(x, k, token, N, element, count, bias);
    }
    // Of the first `tokens` tokens.
    CHASKI_INLINE void fill(const Activations& x, int64_t k, int64_t token, int tokens, int64_t element,
                            int count, int bias) {
        for (int n = 0; n < tokens; ++n) {
            const float* scales = x.scales + (token + n) * (k / 32) + element / 32;
            const int16_t* sums = x.sums + (token + n) * (k / 16) + element / 16;
            if (count == kCount) {  // the usual case, which the compiler turns into vectors
                fill_token(n, scales, sums, kCount, bias);
            } else {
                fill_token(n, scales, sums, count, bias);
            }
        }
    }

   private:
    // By copies that nothing else can point at, or it would not become vectors.
    CHASKI_INLINE void fill_token(int n, const float* scales, const int16_t* sums, int count, int bias) {
        float own[kCount], factor[kCount];
        int32_t total[kCount];
        for (int i = 0; i < count; ++i) own[i] = scales[i * kSub / 32];
        for (int i = 0; i < count; ++i) total[i] = kSub == 16 ? sums[i] : sums[2 * i] + sums[2 * i + 1];
        for (int i = 0; i < count; ++i) factor[i] = kPowers ? as_factor(own[i]) : own[i];
        __builtin_memcpy(scale[n], factor, count * sizeof(float));
        for (int i = 0; i < count; ++i) {
            if constexpr (kStarts) start[n][i] = -bias * total[i];
            if constexpr (kMins) sum[n][i] = -(own[i] * static_cast<float>(total[i]));
        }
    }
};

}  // namespace chaski::CHASKI_ISA
