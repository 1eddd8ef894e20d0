// y = x · Wᵀ + bias + residual for a quantized W and few tokens, by the rule in matmul.h.
//
// Compiled for one format of weights (CHASKI_FORMAT) and a number of tokens (CHASKI_TOKENS). A thread block
// goes from panel to panel. Its groups of 16 lanes share a panel's blocks of weights, because integer sums do
// not depend on the order. The floats that result from a block are stored in shared memory, and another
// group, one for each token, adds them up in ascending k. Meanwhile the next weights are copied to shared
// memory.
#include "matmul_arguments.h"

namespace chaski::CHASKI_ISA {

constexpr int kTokens = CHASKI_TOKENS;

// The numbers and values of a thread block's tokens. A missing token repeats another one.
struct Tokens {
    int64_t number[kTokens];
    const int8_t* values[kTokens];
};

// The first or the second 16-bit number.
CHASKI_INLINE int32_t half_of(int32_t both, int which) {
    return which == 0 ? static_cast<int16_t>(both) : both >> 16;
}

// The products of a format with a panel of 16 rows.
template <class Format>
struct Panel {
    // Floats of one step of the chain, for a row and a token.
    static constexpr int kFloats = Format::kIsSuper ? 1 : Format::kMins ? 4 : 2;
    // Elements of k of a step, and the number of steps of a block of weights.
    static constexpr int kStep = Format::kIsSuper ? kSuperElements : Format::kSub;
    static constexpr int kSteps = Format::kElements / kStep;

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
        if constexpr (Format::kIsSuper) {
            multiply_super_block(a, block, at, x, store);
        } else {
            multiply_plain_block(a, block, at, x, store);
        }
    }

    template <class Store>
    CHASKI_INLINE static void multiply_super_block(const Matmul& a, const Format& block, int64_t at,
                                                   const Tokens& x, const Store& store) {
        constexpr int kSub = Format::kSub;
        static_assert(Format::kOffset == 0 || kSub == 16, "an offset has the sums of 16 values");
        int32_t products[kTokens] = {}, mins[kTokens] = {};
        // Super-scales consist of their unit and pairs of 16-bit numbers: shifts, then sums.
        const int32_t *supers[kTokens], *halves[kTokens];
        for (int n = 0; n < kTokens; ++n) {
            supers[n] =
                reinterpret_cast<const int32_t*>(a.supers + (x.number[n] * a.k + at) / kSuperElements);
            halves[n] = reinterpret_cast<const int32_t*>(a.sums) + (x.number[n] * a.k + at) / 32;
        }
        const auto shift_of = [&](int n, int block) { return half_of(supers[n][1 + block / 2], block % 2); };
        unroll<kSuperElements / kSub / 2>([&](auto pair) __attribute__((always_inline)) {
            constexpr int kPair = decltype(pair)::value, kFirst = first_of_pair<kSub, kPair>;
            const int32_t scales = block.template scales<kPair>().v;
            const auto add = [&](auto sub, int32_t scale) __attribute__((always_inline)) {
                constexpr int kOwn = decltype(sub)::value;
                int32_t sums[kTokens];
                multiply<kOwn>(block, x, at, sums);
                for (int n = 0; n < kTokens; ++n) {
                    if constexpr (Format::kOffset != 0) {
                        sums[n] -= Format::kOffset * half_of(halves[n][kOwn / 2], kOwn % 2);
                    }
                    products[n] += device::shift_left(scale * sums[n], shift_of(n, kOwn * kSub / 32));
                }
            };
            add(Index<kFirst>{}, static_cast<int16_t>(scales));
            add(Index<kFirst + kPairStep<kSub>>{}, scales >> 16);
        });
        if constexpr (Format::kMins) {
            constexpr int kMinSub = Format::kMinSub;
            unroll<kSuperElements / kMinSub / 2>([&](auto pair) __attribute__((always_inline)) {
                constexpr int kPair = decltype(pair)::value, kFirst = first_of_pair<kMinSub, kPair>;
                const int32_t both = block.template mins<kPair>().v;
                for (int n = 0; n < kTokens; ++n) {
                    const auto sum_of = [&](int sub) {
                        return kMinSub == 32 ? half_of(supers[n][5 + sub / 2], sub % 2)
                                             : device::shift_left(half_of(halves[n][sub / 2], sub % 2),
                                                                  shift_of(n, sub / 2));
                    };
                    mins[n] += static_cast<int16_t>(both) * sum_of(kFirst) +
                               (both >> 16) * sum_of(kFirst + kPairStep<kMinSub>);
                }
            });
        }
        const float d = block.d().v;
        for (int n = 0; n < kTokens; ++n) {
            float sum = static_cast<float>(products[n]) * d;
            if constexpr (Format::kMins) sum = device::fma(static_cast<float>(mins[n]), block.dmin().v, sum);
            store(n, 0, 0, sum);
        }
    }

    template <class Store>
    CHASKI_INLINE static void multiply_plain_block(const Matmul& a, const Format& block, int64_t at,
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

    // y plus the floats of one row and one token, of `count` steps from element `at` of k on.
    CHASKI_INLINE static float chain(const Matmul& a, const float* floats, int64_t token, int64_t at,
                                     int count, float y) {
        const SuperScale* supers = a.supers + (token * a.k + at) / kSuperElements;
#pragma unroll 8
        for (int step = 0; step < count; ++step, floats += kTokens * kFloats * kLanes) {
            y = device::fma(floats[0], Format::kIsSuper ? supers[step].unit : floats[kLanes], y);
            if constexpr (Format::kMins) {
                if constexpr (!Format::kIsSuper) y = device::fma(floats[2 * kLanes], floats[3 * kLanes], y);
            }
        }
        return y;
    }
};

// The number of groups that multiply, the blocks of weights that each has at a time, and the number of stages
// in shared memory: one is multiplied while another is copied.
constexpr int kGroups = CHASKI_GROUPS, kUnit = CHASKI_UNIT, kStages = 2;

// One stage of a thread block's work: a stretch along k of a panel, with `count` blocks of weights.
template <class Format>
struct Stage {
    static constexpr int kBlocks = kGroups * kUnit;
    // Groups that read at the same time use different banks.
    static constexpr int kUnitBytes = kUnit * Format::kBytes + 64;

    const Part* part;  // null after the last stage
    int64_t at;        // the number of its panel among the panels of all parts
    int64_t panel;
    int begin;  // the number of its first block
    int count;

    // The first stage.
    CHASKI_INLINE explicit Stage(const Matmul& a) : at(blockIdx.x), begin(0) { find(a); }
    // The stage after this one, for this block of threads.
    CHASKI_INLINE Stage next(const Matmul& a) const {
        Stage found = *this;
        found.begin += kBlocks;
        if (is_last(a)) {
            found.begin = 0;
            found.at += gridDim.x;
        }
        found.find(a);
        return found;
    }
    CHASKI_INLINE void find(const Matmul& a) {
        const int left = blocks_of(a) - begin;
        count = left < kBlocks ? left : kBlocks;
        panel = at;
        part = nullptr;
        for (const Part& one : a.parts) {
            if (panel < num_panels(one.rows)) {
                part = &one;
                break;
            }
            panel -= num_panels(one.rows);
        }
    }
    CHASKI_INLINE static int blocks_of(const Matmul& a) { return static_cast<int>(a.k / Format::kElements); }
    CHASKI_INLINE bool is_last(const Matmul& a) const { return begin + count == blocks_of(a); }
    // Starts copying the weights of this stage to shared memory. Each group copies the weights that it
    // multiplies. `matrix` is the start of the matrix.
    CHASKI_INLINE void fetch(const Matmul& a, int64_t matrix, uint8_t* to) const {
        const int own = group() * kUnit, units = count - own < kUnit ? count - own : kUnit;
        if (part == nullptr || units <= 0) return;
        const uint8_t* from = part->panels + matrix + panel * panel_bytes(Format::kType, a.k) +
                              static_cast<int64_t>(begin + own) * Format::kBytes + 16 * lane();
        to += group() * kUnitBytes + 16 * lane();
        constexpr int kWords = Format::kBytes / 16;
        const int words = (kUnit == 1 ? kWords : units * kWords) - lane();
        unroll<(kUnit * kWords + kLanes - 1) / kLanes>([&](auto i) __attribute__((always_inline)) {
            constexpr int kWord = decltype(i)::value * kLanes;
            if (kWord < words) device::copy_16<16 * kWord>(to, from);
        });
    }
};

template <class Format>
CHASKI_INLINE void multiply_panels(const Matmul& a) {
    using Own = Panel<Format>;
    using Work = Stage<Format>;
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
    for (int index = 0;; ++index) {
        device::wait_copies<0>();
        barrier();
        const Work next = work.next(a);
        if (group() < kGroups) {
            next.fetch(a, share.weights(), buffer(index + 1));
            device::end_copies();
            for (int unit = 0; work.part != nullptr && unit < kUnit; ++unit) {
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
        } else if (index > 0 && token < kTokens) {
            const float* from = floats + (index - 1) % 2 * kFloats + token * Own::kFloats * kLanes + lane();
            y = Own::chain(a, from, share.source(token),
                           static_cast<int64_t>(before.begin) * Format::kElements, before.count * Own::kSteps,
                           y);
            if (before.is_last(a)) {
                const Part& part = *before.part;
                const int64_t row = before.panel * kLanes + lane();
                if (share.begin + token < share.end && row < part.rows) {
                    if (part.bias != nullptr) y = y + part.bias[share.bias(part.rows) + row];
                    const int64_t at = (share.begin + token) * part.rows + row;
                    if (part.residual != nullptr) y = y + part.residual[at];
                    part.y[at] = y;
                }
                y = 0.0f;
            }
        }
        if (work.part == nullptr) return;
        before = work;
        work = next;
    }
}

// There is a thread block for some panels of all parts, and for each kTokens tokens.
CHASKI_KERNEL_AHEAD(matmul, Matmul) { multiply_panels<CHASKI_FORMAT>(a); }

}  // namespace chaski::CHASKI_ISA
