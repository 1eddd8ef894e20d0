// y = x · Wᵀ + bias + residual for a W with super-blocks (CHASKI_FORMAT) and many tokens, by the rule in
// matmul.h, with the tensor instructions for int8.
//
// A thread block multiplies kRowWarps panels of 16 rows by kTokens tokens. It goes along k in stages of
// kSplits super-blocks, while it copies the next stage to shared memory. Each warp multiplies a panel's
// super-block by all tokens, straight from the stored form: the codes that it unpacks stay in registers for
// all of them. Integer sums do not depend on the order, so warps may share the super-blocks of a stage. Then
// they exchange floats, and each adds up some of the results in ascending k.
#include "supers.h"

namespace chaski::CHASKI_ISA {

constexpr int kPanels = CHASKI_PANELS, kSplits = CHASKI_SPLITS, kTokens = CHASKI_TOKENS;
constexpr int kWarps = kPanels * kSplits, kThreads = 32 * kWarps;
constexpr int kTiles = kTokens / 8, kOwnTiles = kTiles / kSplits;  // of 8 tokens; those that a thread adds up
constexpr int kStages = 2;  // one is multiplied while another is copied
static_assert(kTiles % kSplits == 0);

// The shared memory of a thread block.
template <class Format>
struct Slab {
    uint32_t sources[kTokens];  // the number of the first super-block of each token's activations
    alignas(16) uint8_t weights[kStages][kPanels][kSplits * Format::kBytes];
    Activated<Format, kTokens> tokens[kStages][kSplits];
    float4 floats[kSplits == 1 ? 1 : kWarps][kTiles][kSplits == 1 ? 1 : 32];
};

template <class Format>
CHASKI_INLINE void multiply_panels(const Matmul& a) {
    // Thread blocks that run at the same time multiply the same rows.
    const unsigned block = blockIdx.x + gridDim.x * blockIdx.y;
    const Share share(a.experts, a.n, kTokens, block % gridDim.y);
    if (share.is_empty()) return;
    int64_t panel = static_cast<int64_t>(block / gridDim.y) * kPanels;
    int which = 0;
    const auto padded_panels = [&](int64_t rows) {
        return (num_panels(rows) + kPanels - 1) / kPanels * kPanels;
    };
    while (panel >= padded_panels(a.parts[which].rows)) panel -= padded_panels(a.parts[which++].rows);
    const Part& part = a.parts[which];
    auto& slab = *reinterpret_cast<Slab<Format>*>(device::shared());
    const int supers = static_cast<int>(a.k / kSuperElements), stages = (supers + kSplits - 1) / kSplits;
    const auto count_of = [&](int stage) {
        const int left = supers - stage * kSplits;
        return left < kSplits ? left : kSplits;
    };
    if (const int own = static_cast<int>(threadIdx.x); own < kTokens) {
        slab.sources[own] = static_cast<uint32_t>(share.source(own) * supers);
    }
    barrier();
    // This many threads copy a panel.
    constexpr int kCopiers = kThreads / kPanels;
    const int copied = static_cast<int>(threadIdx.x) / kCopiers,
              first = static_cast<int>(threadIdx.x) % kCopiers;
    const int64_t last = num_panels(part.rows) - 1, bytes = panel_bytes(Format::kType, a.k);
    const uint8_t* source =
        part.panels + share.weights() + (panel + copied < last ? panel + copied : last) * bytes + 16 * first;
    const auto fetch = [&](int stage) {
        if (stage < stages) {
            const int count = count_of(stage), left = count * (Format::kBytes / 16) - first;
            const uint8_t* from = source + static_cast<int64_t>(stage) * (kSplits * Format::kBytes);
            uint8_t* to = slab.weights[stage % kStages][copied] + 16 * first;
            constexpr int kWords = kSplits * Format::kBytes / 16;
            unroll<(kWords + kCopiers - 1) / kCopiers>([&](auto i) __attribute__((always_inline)) {
                constexpr int kWord = decltype(i)::value * kCopiers;
                constexpr bool kIsWhole = kSplits == 1 && kWord + kCopiers <= kWords;
                if (kIsWhole || kWord < left) device::copy_16<16 * kWord>(to, from);
            });
#pragma unroll
            for (int split = 0; split < kSplits; ++split) {
                if (kSplits > 1 && split >= count) break;
                slab.tokens[stage % kStages][split].template fetch<kThreads / kLanes>(
                    a, slab.sources, stage * kSplits + split, group());
            }
        }
        device::end_copies();
    };
    fetch(0);
    const int warp = static_cast<int>(threadIdx.x) / 32, thread = static_cast<int>(threadIdx.x) % 32;
    const int split = warp % kSplits, own_panel = warp / kSplits, g = thread / 4, t = thread % 4;
    float y[kOwnTiles][4] = {};  // of every tile number i kSplits + split
    const auto add = [&](const Activated<Format, kTokens>& x, int i, const float (&floats)[4]) {
        for (int j = 0; j < 4; ++j) {
            const int32_t unit = x.scales[8 * (i * kSplits + split) + 2 * t + j % 2][0];
            y[i][j] = device::fma(floats[j], device::as_float(unit), y[i][j]);
        }
    };
    for (int stage = 0; stage < stages; ++stage) {
        device::wait_copies<0>();
        const int at = stage % kStages, count = count_of(stage);
        auto& x = slab.tokens[at];
        for (int i = 0; i < kSplits; ++i) {
            if (i < count) x[i].template unpack_shifts<kThreads / kLanes>(group());
        }
        // Now this stage has arrived, and no thread needs the previous one.
        barrier();
        fetch(stage + 1);
        if (kSplits == 1 || split < count) {
            const Product<Format, kTiles, kTokens> product{
                slab.weights[at][own_panel] + split * Format::kBytes, x[split]};
            product.multiply([&](int tile, const float (&floats)[4]) {
                if constexpr (kSplits == 1) {
                    add(x[0], tile, floats);
                } else {
                    slab.floats[warp][tile][thread] = {floats[0], floats[1], floats[2], floats[3]};
                }
            });
        }
        if constexpr (kSplits > 1) {
            barrier();
#pragma unroll
            for (int from = 0; from < kSplits; ++from) {
                if (from >= count) break;
#pragma unroll
                for (int i = 0; i < kOwnTiles; ++i) {
                    const auto four = slab.floats[own_panel * kSplits + from][i * kSplits + split][thread];
                    add(x[from], i, {four.x, four.y, four.z, four.w});
                }
            }
        }
    }
    for (int i = 0; i < kOwnTiles; ++i) {
        for (int j = 0; j < 4; ++j) {
            const int64_t token = share.begin + 8 * (i * kSplits + split) + 2 * t + j % 2;
            const int64_t row = (panel + own_panel) * kLanes + 2 * g + j / 2;
            if (token >= share.end || row >= part.rows) continue;
            float sum = y[i][j];
            if (part.bias != nullptr) sum = sum + part.bias[share.bias(part.rows) + row];
            const int64_t place = token * part.rows + row;
            if (part.residual != nullptr) sum = sum + part.residual[place];
            part.y[place] = sum;
        }
    }
}

// There is a thread block for each kPanels panels of all parts, and for each kTokens tokens.
CHASKI_KERNEL(matmul_super_many, Matmul) { multiply_panels<CHASKI_FORMAT>(a); }

}  // namespace chaski::CHASKI_ISA
