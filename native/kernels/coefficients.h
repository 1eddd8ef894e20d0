// Numbers that a run of weight blocks needs from the activations in addition to their int8 values: one of
// each kind per token and block, laid out so that kernels broadcast them from memory.
#pragma once

#include "matmul.h"
#include "simd.h"

namespace chaski::CHASKI_ISA {

// Up to kCount blocks of 32 elements for N tokens. Unneeded members have only one block. kSub: elements with
// an integer sum.
template <bool kMins, int kCount, int N, bool kStarts = true, int kSub = 32>
struct Coefficients {
    static constexpr int kSums = 32 / kSub;  // of a block

    // -bias * sum of values: initial integer sum
    alignas(64) int32_t start[N][kStarts ? kCount * kSums : 1];
    alignas(64) float scale[N][kCount];
    alignas(64) float sum[N][kMins ? kCount : 1];  // -(scale * sum of values), which multiplies the min

    // For `count` blocks from `element` of k on, and for `tokens` tokens from `token` on.
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

    // Clears the tokens from number `first` on. Old data may contain subnormal numbers, which are slow.
    void clear(int first) {
        for (int n = first; n < N; ++n) {
            __builtin_memset(scale[n], 0, sizeof(scale[n]));
            __builtin_memset(sum[n], 0, sizeof(sum[n]));
        }
    }

   private:
    // Uses local copies without aliases, so that the compiler vectorizes the loop.
    CHASKI_INLINE void fill_token(int n, const float* scales, const int16_t* sums, int count, int bias) {
        float own[kCount];
        int32_t total[kCount];
        for (int i = 0; i < count; ++i) own[i] = scales[i];
        for (int i = 0; i < count; ++i) total[i] = sums[2 * i] + sums[2 * i + 1];
        __builtin_memcpy(scale[n], own, count * sizeof(float));
        if constexpr (kStarts) {
            for (int i = 0; i < count * kSums; ++i) start[n][i] = -bias * (kSums == 1 ? total[i] : sums[i]);
        }
        for (int i = 0; i < count; ++i) {
            if constexpr (kMins) sum[n][i] = -(own[i] * static_cast<float>(total[i]));
        }
    }
};

}  // namespace chaski::CHASKI_ISA
