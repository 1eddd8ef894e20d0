// y = x · Wᵀ + bias + residual for a quantized W without super-blocks and few tokens, by the rule in
// matmul.h.
//
// Compiled for one format of weights (CHASKI_FORMAT) and a number of tokens (CHASKI_TOKENS). A thread block
// goes from panel to panel. Its groups of 16 lanes share a panel's blocks of weights, because integer sums do
// not depend on the order. The floats that result from a block are stored in shared memory, and another
// group, one for each token, adds them up in ascending k. Meanwhile the next weights are copied to shared
// memory.
#include "stages.h"
#include "tail.h"

namespace chaski::CHASKI_ISA {

constexpr int kTokens = CHASKI_TOKENS;

// The numbers and values of a thread block's tokens. A missing token repeats another one.
struct Tokens {
    int64_t number[kTokens];
    const int8_t* values[kTokens];
};

// The products of a format with a panel of 16 rows.
template <class Format>
struct Panel {
    // Floats of one step of the chain, for a row and a token.
    static constexpr int kFloats = Format::kMins ? 4 : 2;
    // Elements of k of a step, and the number of steps of a block of weights.
    static constexpr int kStep = Format::kSub, kSteps = Format::kElements / kStep;

    // The integer products of sub-block S with each token's values from element `at` of k on.
    template <int S>
    CHASKI_INLINE static void multiply(const Format& block, const Tokens& x, int64_t at,
                                       int32_t (&sums)[kTokens]) {
        for (int n = 0; n < kTokens; ++n) sums[n] = 0;
        unroll<Format::kSub / 16>([&](auto part) __attribute__((always_inline)) {
            constexpr int kPart = decltype(part)::value;
            int4 words[kTokens];
            for (int n = 0; n < kTokens; ++n) {
                words[n] = *reinterpret_cast<const int4*>(x.values[n] + at + S * Format::kSub + 16 * kPart);
            }
            const auto add = [&](auto i, int32_t int4::* word) __attribute__((always_inline)) {
                const U8x64 codes = block.template codes<S, 4 * kPart + decltype(i)::value>();
                for (int n = 0; n < kTokens; ++n) {
                    sums[n] = device::dot4(sums[n], codes.v, words[n].*word);
                }
            };
            add(Index<0>{}, &int4::x);
            add(Index<1>{}, &int4::y);
            add(Index<2>{}, &int4::z);
            add(Index<3>{}, &int4::w);
        });
    }

    // Calls store(token, step, which, float) for the floats that the steps of a block add.
    template <class Store>
    CHASKI_INLINE static void multiply_block(const Matmul& a, const Format& block, int64_t at,
                                             const Tokens& x, const Store& store) {
        unroll<kSteps>([&](auto s) __attribute__((always_inline)) {
            constexpr int kSub = decltype(s)::value;
            int32_t sums[kTokens];
            multiply<kSub>(block, x, at, sums);
            const float scale = block.template scale<kSub>().v;
            for (int n = 0; n < kTokens; ++n) {
                const int64_t element = x.number[n] * a.k + at + kStep * kSub;
                int32_t total = a.sums[element / 16];
                if constexpr (kStep == 32) total += a.sums[element / 16 + 1];
                const float own = a.scales[element / 32];
                store(n, kSub, 0, static_cast<float>(sums[n] - Format::kOffset * total));
                store(n, kSub, 1, scale * own);
                if constexpr (Format::kMins) {
                    store(n, kSub, 2, block.template min<kSub>().v);
                    store(n, kSub, 3, -(own * static_cast<float>(total)));
                }
            }
        });
    }

    // y plus the floats of one row and one token, of `count` steps.
    CHASKI_INLINE static float chain(const float* floats, int count, float y) {
#pragma unroll 8
        for (int step = 0; step < count; ++step, floats += kTokens * kFloats * kLanes) {
            y = device::fma(floats[0], floats[kLanes], y);
            if constexpr (Format::kMins) y = device::fma(floats[2 * kLanes], floats[3 * kLanes], y);
        }
        return y;
    }
};

// The number of groups that multiply, the blocks of weights that each has at a time, and the number of stages
// in shared memory: one is multiplied while another is copied.
static_assert(CHASKI_GROUPS % 2 == 0, "a warp either multiplies or adds up");
constexpr int kGroups = CHASKI_GROUPS, kUnit = CHASKI_UNIT, kStages = 2;

template <class Format>
CHASKI_INLINE void multiply_panels(const Matmul& a) {
    using Own = Panel<Format>;
    using Work = Stage<Format, kGroups, kUnit, kLanes>;
    static_assert(!Format::kIsSuper, "matmul_super.cu multiplies these");
    constexpr int kFloats = Work::kBlocks * Own::kSteps * kTokens * Own::kFloats * kLanes;
    static_assert(kStages == 2, "one is multiplied, and another is on its way");
    uint8_t* weights = device::shared();
    auto* floats = reinterpret_cast<float*>(weights + kStages * kGroups * Work::kUnitBytes);
    const auto buffer = [&](int index) { return weights + index % kStages * kGroups * Work::kUnitBytes; };
    Work before(a), work = before;
    const auto fetch_first = [&](int64_t matrix) {
        if (group() < kGroups) work.fetch(a, matrix, buffer(0));
        device::end_copies();
    };
#if defined(CHASKI_EXPERTS)
    device::begin();
    const Share share(a.experts, a.n, kTokens);
    if (share.is_empty()) return;
    fetch_first(share.weights());
#else
    fetch_first(0);
    device::begin();
    const Share share(a.experts, a.n, kTokens);
    if (share.is_empty()) return;
#endif
    Tokens x;
    for (int i = 0; i < kTokens; ++i) {
        x.number[i] = share.source(i);
        x.values[i] = a.values + x.number[i] * a.k;
    }
    // The groups after the multiplying groups add up the results of the previous stage, one token each.
    const int token = group() - kGroups;
    float y = 0.0f;
    Results<1> results;
    for (int index = 0;; ++index) {
        device::wait_copies<0>();
        barrier();
        const Work next = work.next(a);
        if (group() < kGroups) {
            next.fetch(a, share.weights(), buffer(index + 1));
            device::end_copies();
            for (int unit = 0; !work.is_after_all() && unit < kUnit; ++unit) {
                const int own = group() * kUnit + unit;
                if (own >= work.count) break;
                const Format block{{buffer(index) + group() * Work::kUnitBytes + unit * Format::kBytes}};
                float* to = floats + index % 2 * kFloats;
                const auto store = [&](int token, int step, int which, float value) {
                    to[(((own * Own::kSteps + step) * kTokens + token) * Own::kFloats + which) * kLanes +
                       lane()] = value;
                };
                Own::multiply_block(a, block, static_cast<int64_t>(work.begin + own) * Format::kElements, x,
                                    store);
            }
        } else if (index > 0) {
            const float* from = floats + (index - 1) % 2 * kFloats + token * Own::kFloats * kLanes + lane();
            if (token < kTokens) y = Own::chain(from, before.count * Own::kSteps, y);
            if (before.is_last(a)) {
                if (token < kTokens) results.put(a, share, before, 0, token, y);
                y = 0.0f;
                results.template end<kTokens>(a, share, before, token / 2 * 2);
            }
        }
        if (work.is_after_all()) return;
        before = work;
        work = next;
    }
}

// There is a thread block for some panels of all parts, and for each kTokens tokens.
CHASKI_KERNEL_AHEAD(matmul, Matmul) { multiply_panels<CHASKI_FORMAT>(a); }

}  // namespace chaski::CHASKI_ISA
