// Products of float32 with many tokens: y = fma(w, x, y) along k, weights widened to a slab first.
#pragma once

#include "product.h"

namespace chaski::CHASKI_ISA {

struct Floats {
    static constexpr int kStep = 96;  // slabs of four panels leave room in 32 KB; others use the next cache
    static constexpr int kSub = 16;   // elements between two prefetches
    static constexpr int P = kFloatPanels, N = kFloatTokens;
    static constexpr int kSmallest = smallest_tile(N, kFloatStreamTokens + 1);
    static constexpr int kGroup = kFloatGroup, kFewPanels = 0;
    static Unpack unpack_of(const Unpacker& u) { return u.unpack; }
    static constexpr int kSlab = kStep * 64;
    // Rows of tokens are often a power of two apart, so that only a few of them fit a cache together. A tile
    // that passes several times is copied.
    static constexpr bool kCopies = kGroup > P;

    template <int kTokens>
    struct Tokens {
        const float* values;
        int64_t k;
        alignas(64) float own[kCopies ? kTokens * kStep : 1];

        explicit Tokens(const TileInput& in) : values(in.x.floats + in.first_of(0)), k(in.k) {
            for (int n = 0; kCopies && n < kTokens; ++n) {
                __builtin_memcpy(own + n * kStep, values + n * k, in.elements * sizeof(float));
            }
        }

        CHASKI_INLINE F32x16 value(int n, int i) const {
            return splat(kCopies ? own[n * kStep + i] : values[n * k + i]);
        }

        template <int kPanels, class Before>
        CHASKI_INLINE void add(const uint8_t* slab, int elements, const Before& before,
                               Sums<kPanels, kTokens>& y, Prefetch<kPanels>& prefetch) const {
            y.take(before);
            const auto* lines = reinterpret_cast<const float*>(slab);
            for (int i = 0; i < elements; ++i) {
                if (i % kSub == 0) {
                    prefetch.fetch();
                    // The tokens of the next tile are too far apart for the processor's own prefetching.
                    for (int n = 0; n < kTokens; ++n)
                        __builtin_prefetch(values + (kTokens + n) * k + i, 0, 2);
                }
                F32x16 column[kPanels];
#pragma GCC unroll 16
                for (int p = 0; p < kPanels; ++p) column[p] = load_f32(lines + p * (kSlab / 4) + kLanes * i);
#pragma GCC unroll 16
                for (int n = 0; n < kTokens; ++n) {
                    const F32x16 x = value(n, i);
#pragma GCC unroll 16
                    for (int p = 0; p < kPanels; ++p) y.v[p][n] = fma(column[p], x, y.v[p][n]);
                }
            }
        }
    };
};

}  // namespace chaski::CHASKI_ISA
