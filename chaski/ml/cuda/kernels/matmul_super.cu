// y = x · Wᵀ + bias + residual for a W with super-blocks (CHASKI_FORMAT) and up to 16 tokens, by the rule in
// matmul.h, with the tensor instructions for int8.
//
// A thread block goes from panel to panel. Each of its warps multiplies one super-block at a time by all
// tokens: the stored lines of codes are already in an order that the instructions take. Since integer sums do
// not depend on the order, the warps share a panel's super-blocks. The floats that result are stored in
// shared memory, and other threads add them up in ascending k. Meanwhile the next weights are copied to
// shared memory.
#include "stages.h"
#include "supers.h"
#include "tail.h"
#if defined(CHASKI_ROW)
#include "norms.h"
#endif

namespace chaski::CHASKI_ISA {

constexpr int kTokens = CHASKI_TOKENS, kTiles = (kTokens + 7) / 8;
static_assert(kTokens == 1 || kTokens % 8 == 0);
constexpr int kWarps = CHASKI_WARPS;
// The number of super-blocks that a warp multiplies in every panel, if it has the activations of all of them
// in shared memory; 0 if it copies the activations of each stage.
constexpr int kKept = CHASKI_KEPT;
// Groups of 16 lanes that add up floats.
constexpr int kChains = kTokens == 1 ? 2 : 8;
constexpr int kStages = 2;  // one is multiplied while another is copied

// The super-block of each token that a warp multiplies, in its stored form. The distance between tokens is
// such that threads that read at the same time use different banks.
template <class Format>
struct Activated {
    static constexpr bool kHasSums = Format::kMinSub != 32;

    alignas(16) uint8_t values[kTokens][kSuperElements + 16];
    alignas(16) int32_t scales[kTokens][12];  // the unit, shifts from word 4 on, and sums from word 8 on
    alignas(16) int32_t sums[kHasSums ? kTokens : 1][8];
};

// The shared memory of a thread block.
template <class Format>
struct Slab {
    uint32_t sources[16];  // the number of the first super-block of each token's activations
    alignas(16) uint8_t weights[kStages][kWarps][Format::kBytes + 64];
    Activated<Format> tokens[kKept > 0 ? kKept : kStages][kWarps];
    float floats[2][kWarps][kTokens][kLanes];

    // The activations of a stage that begins with super-block number `begin`.
    CHASKI_INLINE Activated<Format> (&tokens_of(int begin, int index)) [kWarps] {
        return tokens[kKept == 0 ? index % kStages : kKept == 1 ? 0 : begin / kWarps];
    }
};

// Starts copying a super-block of all tokens. `number`: its number in a row.
template <class Format>
CHASKI_INLINE void fetch_tokens(const Matmul& a, const uint32_t (&sources)[16], int number,
                                Activated<Format>& to) {
    constexpr int kWords = sizeof(SuperScale) / 4;
    static_assert(kWords == 9);
    const int own = lane(), which = group() % 2;
    // The addresses of the first token's data, kept from being computed again for each token.
    const auto* values = device::kept(reinterpret_cast<const uint8_t*>(a.values) + 16 * own);
    const auto* supers = device::kept(reinterpret_cast<const int32_t*>(a.supers) + own);
    const auto* sums = device::kept(reinterpret_cast<const int32_t*>(a.sums) + own);
    auto* values_to = device::kept(to.values[which] + 16 * own);
    auto* supers_to = device::kept(&to.scales[which][own == 0 ? 0 : own + 3]);
    auto* sums_to = device::kept(&to.sums[Activated<Format>::kHasSums ? which : 0][own % 8]);
#pragma unroll
    for (int first = 0; first < kTokens; first += 2) {
        if (first + which >= kTokens) break;
        const uint64_t block = sources[first + which] + static_cast<uint32_t>(number);
        device::copy_16(values_to + first * sizeof(to.values[0]), values + block * kSuperElements);
        if (own < kWords) device::copy_4(supers_to + first * 12, supers + block * kWords);
        if constexpr (Activated<Format>::kHasSums) {
            if (own < 8) device::copy_4(sums_to + first * 8, sums + block * 8);
        }
    }
}

// The products of a warp with a super-block of 16 rows. Thread 4 g + t passes every fourth word of rows 2 g
// and 2 g + 1 to the instructions, and of a tile's token g; it gets the sums of these rows and of tokens 2 t
// and 2 t + 1.
template <class Format>
struct Panel {
    static constexpr int kSub = Format::kSub, kPairs = kSuperElements / kSub / 2;
    // True if one scale applies to 32 elements.
    static constexpr bool kIsWide = kSub == 32 || Format::kMinSub == 32;

    const uint8_t* block;
    const Activated<Format>& x;
    const int g = static_cast<int>(threadIdx.x % 32 / 4), t = static_cast<int>(threadIdx.x % 4);

    // The numbers of this thread's row in units of `size` bytes, and codes from unit t on.
    CHASKI_INLINE Format row(int which, int size) const {
        return Format{{{block + size * (2 * g + which - lane())}}};
    }
    CHASKI_INLINE Format codes(int which) const {
        return Format{{{block + 4 * (2 * g + which - lane()), t}}};
    }
    // A tile's token. A single token stands in all columns, and only the first one is stored.
    CHASKI_INLINE static int token_of(int tile, int column) { return kTokens == 1 ? 0 : 8 * tile + column; }

    // Calls store(token, row, float) for the floats that the chains add.
    template <class Store>
    CHASKI_INLINE void multiply(const Store& store) const {
        int32_t scales[2][kPairs], products[kTiles][4] = {};
        unroll<kPairs>([&](auto pair) __attribute__((always_inline)) {
            constexpr int kPair = decltype(pair)::value;
            for (int i = 0; i < 2; ++i) scales[i][kPair] = row(i, 4).template scales<kPair>().v;
        });
        int4 shifts[kTiles][2];
#pragma unroll
        for (int i = 0; i < 2 * kTiles; ++i) {
            shifts[i / 2][i % 2] =
                *reinterpret_cast<const int4*>(x.scales[token_of(i / 2, 2 * t + i % 2)] + 4);
        }
        const Format first = codes(0), second = codes(1);
        unroll<kSuperElements / 32>([&](auto number) __attribute__((always_inline)) {
            constexpr int kBlock = decltype(number)::value;
            constexpr int kLow = kSub == 32 ? kBlock : 2 * kBlock, kHigh = kSub == 32 ? kBlock : kLow + 1;
            constexpr int kUnit = kSub == 32 ? 4 : 0;
            const uint32_t words[4] = {first.template codes<kLow, 0>().v, second.template codes<kLow, 0>().v,
                                       first.template codes<kHigh, kUnit>().v,
                                       second.template codes<kHigh, kUnit>().v};
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile) {
                add<kBlock>(words, scales, tile, shifts[tile], products[tile]);
            }
        });
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            int32_t mins[4] = {};
            if constexpr (Format::kOffset != 0) {
                int32_t sums[4] = {};
                multiply_sums<kSub>(scales, tile, sums);
                for (int i = 0; i < 4; ++i) products[tile][i] -= Format::kOffset * sums[i];
            }
            if constexpr (Format::kMins) {
                constexpr int kMinPairs = kSuperElements / Format::kMinSub / 2;
                int32_t own[2][kMinPairs];
                unroll<kMinPairs>([&](auto pair) __attribute__((always_inline)) {
                    constexpr int kPair = decltype(pair)::value;
                    for (int i = 0; i < 2; ++i) own[i][kPair] = row(i, 4).template mins<kPair>().v;
                });
                multiply_sums<Format::kMinSub>(own, tile, mins);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const Format own = row(i / 2, 2);
                float sum = static_cast<float>(products[tile][i]) * own.d().v;
                if constexpr (Format::kMins)
                    sum = device::fma(static_cast<float>(mins[i]), own.dmin().v, sum);
                const int token = 8 * tile + 2 * t + i % 2;
                if (token < kTokens) store(token, 2 * g + i / 2, sum);
            }
        }
    }

    // Adds the products of 32 elements, in scales.
    template <int kBlock>
    CHASKI_INLINE void add(const uint32_t (&words)[4], const int32_t (&scales)[2][kPairs], int tile,
                           const int4 (&shifts)[2], int32_t (&products)[4]) const {
        const auto* values = reinterpret_cast<const uint32_t*>(x.values[token_of(tile, g)]) + 8 * kBlock + t;
        int32_t low[4] = {}, high[4] = {};
        if constexpr (kIsWide) {
            device::multiply_32_us(low, words, values[0], values[4]);
        } else {
            device::multiply_16_us(low, words[0], words[1], values[0]);
            device::multiply_16_us(high, words[2], words[3], values[4]);
        }
        for (int i = 0; i < 4; ++i) {
            const int4& all = shifts[i % 2];
            const int32_t both = kBlock < 2 ? all.x : kBlock < 4 ? all.y : kBlock < 6 ? all.z : all.w;
            const int32_t shift = kBlock % 2 == 0 ? both : both >> 16;
            const auto scale = [&](int half) __attribute__((always_inline)) {
                const int32_t pair = scales[i / 2][kSub == 32 ? kBlock / 2 : kBlock / 2 * 2 + half];
                return kBlock % 2 == 0 ? static_cast<int16_t>(pair) : pair >> 16;
            };
            if constexpr (kIsWide) {
                products[i] += low[i] * device::shift_left(scale(0), shift);
            } else {
                products[i] += device::shift_left(low[i] * scale(0) + high[i] * scale(1), shift);
            }
        }
    }

    // Adds to `y` the products of numbers of 8 bits, in pairs of sub-blocks of kOwn, with the sums of values.
    template <int kOwn, int kCount>
    CHASKI_INLINE void multiply_sums(const int32_t (&pairs)[2][kCount], int tile, int32_t (&y)[4]) const {
        constexpr uint32_t kOrder = kOwn == 32 ? 0x6420 : 0x6240;
        uint32_t words[2];
        for (int i = 0; i < 2; ++i) {
            words[i] = 0;
            for (int word = 0; word < kCount / 2; ++word) {
                const auto low = static_cast<uint32_t>(pairs[i][2 * word]);
                const auto high = static_cast<uint32_t>(pairs[i][2 * word + 1]);
                if (t == word) words[i] = device::select_bytes(low, high, kOrder);
            }
        }
        const int token = token_of(tile, g);
        const uint2 bytes =
            bytes_of_sums<kOwn>(x.scales[token], x.sums[Activated<Format>::kHasSums ? token : 0], t);
        int32_t high[4] = {};
        device::multiply_16_su(y, words[0], words[1], bytes.x);
        device::multiply_16_ss(high, words[0], words[1], bytes.y);
        for (int i = 0; i < 4; ++i) y[i] += high[i] * 256;
    }
};

#if defined(CHASKI_ROW)

// Puts the norm of a row in the place of activations: it is rounded by the warps that multiply it. The row is
// in the memory of the second stage's weights meanwhile.
template <class Format>
CHASKI_INLINE void put_normed(const Matmul& a, const Elements<32 * kWarps>& weight, bool has_elements,
                              Slab<Format>& slab) {
    const int warp = static_cast<int>(threadIdx.x) / 32, thread = static_cast<int>(threadIdx.x) % 32;
    auto* row = reinterpret_cast<float*>(slab.weights[1]);
    static_assert(sizeof(slab.weights[1]) >= sizeof(float) * (kRowFloats + 1) && kTokens == 1);
    Elements<32 * kWarps> x;
    if (has_elements) x.load(a.normed.x, 0.0f);
    rms_norm_of(x, weight, a.normed.eps, row, has_elements);
    if (!has_elements) return;
    auto* super = reinterpret_cast<SuperScale*>(slab.floats[0][warp]);
    float* scales = slab.floats[1][warp][0];
    static_assert(sizeof(*super) <= sizeof(slab.floats[0][0]));
#pragma unroll
    for (int round = 0; round < kKept; ++round) {
        if ((round * kWarps + warp) * kSuperElements >= kSize) return;
        auto& to = slab.tokens[round][warp];
        const Quantized parts{reinterpret_cast<int8_t*>(to.values[0]), scales,
                              reinterpret_cast<int16_t*>(to.sums[0]), super};
        quantize_super_block(x.x[round], kEach * thread, true, parts);
        device::barrier_of_warp();
        constexpr int kWords = sizeof(SuperScale) / 4;
        if (thread < kWords) {
            to.scales[0][thread == 0 ? 0 : thread + 3] = reinterpret_cast<const int32_t*>(super)[thread];
        }
        device::barrier_of_warp();
    }
}

#endif

template <class Format>
CHASKI_INLINE void multiply_panels(const Matmul& a) {
    using Work = Stage<Format, kWarps, 1, 32>;
    auto& slab = *reinterpret_cast<Slab<Format>*>(device::shared());
    const int warp = Work::team();
    const bool is_multiplying = warp < kWarps;
    Work work(a);
    const auto fetch_first = [&](int64_t matrix) {
        if (is_multiplying) work.fetch(a, matrix, slab.weights[0][0]);
    };
#if defined(CHASKI_EXPERTS)
    device::begin();
    const Share share(a.experts, a.n, kTokens);
    if (share.is_empty()) return;
    fetch_first(share.weights());
#else
    fetch_first(0);
#if defined(CHASKI_ROW)
    Elements<32 * kWarps> weight;
    if (is_multiplying) weight.load(a.normed.weight, 1.0f);
#endif
    device::begin();
    const Share share(a.experts, a.n, kTokens);
    if (share.is_empty()) return;
#endif
    const int own = static_cast<int>(threadIdx.x);
    if (own < kTokens) slab.sources[own] = static_cast<uint32_t>(share.source(own) * (a.k / kSuperElements));
    barrier();
    const auto fetch_activations = [&](const Work& of, int index) {
        if (of.is_after_all() || warp >= of.count) return;
        fetch_tokens(a, slab.sources, of.begin + warp, slab.tokens_of(of.begin, index)[warp]);
    };
#if defined(CHASKI_ROW)
    put_normed(a, weight, is_multiplying, slab);
#else
    if (is_multiplying) fetch_activations(work, 0);
#endif
    device::end_copies();
    if (is_multiplying) {
        for (int index = 0; !work.is_after_all(); ++index) {
            device::wait_copies<0>();
            barrier();
            const Work next = work.next(a);
            next.fetch(a, share.weights(), slab.weights[(index + 1) % kStages][0]);
            if (kKept == 0) fetch_activations(next, index + 1);
            device::end_copies();
            if (warp < work.count) {
                auto& to = slab.floats[index % 2][warp];
                const Panel<Format> panel{slab.weights[index % kStages][warp],
                                          slab.tokens_of(work.begin, index)[warp]};
                panel.multiply([&](int token, int row, float value) { to[token][row] = value; });
            }
            work = next;
        }
        barrier();
        return;
    }
    // The other groups add up the floats of a stage while the next one is multiplied.
    barrier();
    const int chain = group() - 2 * kWarps;
    float y[kTiles] = {};
    Results<kTiles> results;
    for (int index = 0; !work.is_after_all(); ++index, work = work.next(a)) {
        barrier();
        const bool is_last = work.is_last(a);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const int token = 8 * tile + chain;
            if (token >= kTokens) break;
            const auto unit_of = [&](int step) __attribute__((always_inline)) {
#if defined(CHASKI_ROW)
                return device::as_float(slab.tokens_of(work.begin, index)[step].scales[0][0]);
#else
                return a.supers[slab.sources[token] + work.begin + step].unit;
#endif
            };
            const auto& from = slab.floats[index % 2];
#pragma unroll 4
            for (int step = 0; step < work.count; ++step) {
                y[tile] = device::fma(from[step][token][lane()], unit_of(step), y[tile]);
            }
            if (!is_last) continue;
            results.put(a, share, work, tile, token, y[tile]);
            y[tile] = 0.0f;
        }
        if (is_last) results.template end<kTokens>(a, share, work, chain / 2 * 2);
    }
}

// There is a thread block for some panels of all parts, and for each kTokens tokens.
CHASKI_KERNEL_AHEAD(matmul_super, Matmul) { multiply_panels<CHASKI_FORMAT>(a); }

}  // namespace chaski::CHASKI_ISA
