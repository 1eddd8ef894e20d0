// y = x · Wᵀ + bias + residual for a W with super-blocks (CHASKI_FORMAT) and up to 16 tokens, by the rule in
// matmul.h, with the tensor instructions for int8.
//
// A thread block goes from panel to panel. Each of its warps multiplies one super-block at a time by all
// tokens. Since integer sums do not depend on the order, the warps share a panel's super-blocks. The floats
// that result are stored in shared memory, and other threads add them up in ascending k. Meanwhile the next
// weights are copied to shared memory.
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

// The shared memory of a thread block.
template <class Format>
struct Slab {
    uint32_t sources[16];  // the number of the first super-block of each token's activations
    alignas(16) uint8_t weights[kStages][kWarps][Format::kBytes + 64];
    Activated<Format, kTokens> tokens[kKept > 0 ? kKept : kStages][kWarps];
    float floats[2][kWarps][kTokens][kLanes];

    // The activations of a stage that begins with super-block number `begin`.
    CHASKI_INLINE Activated<Format, kTokens> (&tokens_of(int begin, int index)) [kWarps] {
        return tokens[kKept == 0 ? index % kStages : kKept == 1 ? 0 : begin / kWarps];
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
        to.template unpack_shifts<2>(group() % 2);
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
        slab.tokens_of(of.begin, index)[warp].template fetch<2>(a, slab.sources, of.begin + warp,
                                                                group() % 2);
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
#if !defined(CHASKI_ROW)
            if (kKept == 0 || index == 0) {
                slab.tokens_of(work.begin, index)[warp].template unpack_shifts<2>(group() % 2);
            }
#endif
            barrier();
            const Work next = work.next(a);
            next.fetch(a, share.weights(), slab.weights[(index + 1) % kStages][0]);
            if (kKept == 0) fetch_activations(next, index + 1);
            device::end_copies();
            if (warp < work.count) {
                auto& to = slab.floats[index % 2][warp];
                const Product<Format, kTiles, kTokens> product{slab.weights[index % kStages][warp],
                                                               slab.tokens_of(work.begin, index)[warp]};
                product.multiply([&](int tile, const float (&floats)[4]) {
                    for (int i = 0; i < 4; ++i) {
                        const int token = 8 * tile + 2 * product.t + i % 2;
                        if (token < kTokens) to[token][2 * product.g + i / 2] = floats[i];
                    }
                });
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
