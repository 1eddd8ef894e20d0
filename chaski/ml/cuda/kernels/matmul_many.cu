// y = x · Wᵀ + bias + residual for a quantized W without super-blocks (CHASKI_FORMAT) and many tokens, by the
// rule in matmul.h, with the tensor instructions for int8.
//
// A thread block multiplies kPanels panels of 16 rows by kTokens tokens. It goes along k in stretches of 256
// elements. The stored data of the next stretches are copied to shared memory in advance. While one stretch
// is multiplied, the weights of the next one are unpacked there: codes minus their offset as signed bytes, in
// the order that tensor instructions take. One instruction adds up 32 or 16 products, which is one sub-block;
// integer sums do not depend on the order. Each thread keeps the floats of its results, and adds to them in
// ascending k.
#include "matmul_arguments.h"

namespace chaski::CHASKI_ISA {

constexpr int kPanels = CHASKI_PANELS, kTokens = CHASKI_TOKENS, kStages = CHASKI_STAGES;
constexpr int kTiles = CHASKI_TILES;  // of 8 tokens, for each warp, which has one panel
constexpr int kWarps = kPanels * (kTokens / (8 * kTiles));
constexpr int kThreads = 32 * kWarps;
static_assert(kStages >= 3, "one is multiplied, the next one is unpacked, and another is on its way");

// A stretch of panels, and of the tokens' activations, in their stored form. Distances between panels and
// between tokens are such that threads that read at the same time use different banks.
template <class Format>
struct Weights {
    static constexpr int kBytes = kSuperElements / Format::kElements * Format::kBytes;

    alignas(16) uint8_t panels[kPanels][(kBytes + 63) / 128 * 128 + 64];
};
template <class Format>
struct Activated {
    static constexpr bool kHasSums = Format::kMins;

    alignas(16) uint8_t values[kTokens][kSuperElements + (Format::kSub == 32 ? 32 : 16)];
    alignas(16) int32_t scales[kTokens][8];  // of blocks of 32
    alignas(16) int32_t sums[kHasSums ? kTokens : 1][8];
};

// The weights of a stretch in the form that is multiplied.
template <class Format>
struct Unpacked {
    static constexpr int kSubs = kSuperElements / Format::kSub;

    // Four words of each thread for each 32 elements: of rows g and g + 8, and then of the same rows with
    // other elements. In every other panel the last two words come first, since two panels are stored at the
    // same time.
    alignas(16) uint32_t codes[kPanels][kSuperElements / 32][32][4];
    alignas(8) float scales[kPanels][kSubs][kLanes / 2][2];  // of rows g and g + 8
    float mins[Format::kMins ? kPanels : 1][kSubs][kLanes];
};

// The shared memory of a thread block.
template <class Format>
struct Slab {
    uint32_t sources[kTokens];  // the number of the first block of 32 elements of each token's activations
    Weights<Format> weights[kStages];
    Activated<Format> tokens[kStages - 1];
    Unpacked<Format> unpacked[2];
};

// The place of the words of thread 4 g + t among a warp's words. Neighbours that store or read at the same
// time use different banks.
CHASKI_INLINE int place_of(int g, int t) { return 4 * g + (t ^ (g / 2 & 3)); }

// Stores word number `word` of the 64 words of this lane's row. If 32 elements share a scale, a thread
// multiplies neighbouring words of them; if each half has a scale, it multiplies a word of each half.
template <class Format>
CHASKI_INLINE void store_codes(Unpacked<Format>& to, int panel, int word, U8x64 codes) {
    const int i = word % 8, t = Format::kSub == 32 ? i / 2 : i % 4, half = Format::kSub == 32 ? i % 2 : i / 4;
    to.codes[panel][word / 8][place_of(lane() % 8, t)][2 * (half ^ panel % 2) + lane() / 8] =
        device::subtract_bytes(codes.v, Format::kOffset);
}

// Unpacks `count` times 32 elements, of consecutive blocks.
template <class Format>
CHASKI_INLINE void unpack_blocks(const uint8_t* weights, int count, int panel, int turn,
                                 Unpacked<Format>& to) {
    constexpr int kEach = Format::kElements / Format::kSub, kWords = Format::kSub / 4;
    for (int index = turn; index < count * 32 / Format::kElements; index += 8) {
        const Format block{{weights + index * Format::kBytes}};
        unroll<kEach>([&](auto s) __attribute__((always_inline)) {
            constexpr int kSub = decltype(s)::value;
            const int place = index * kEach + kSub;
            to.scales[panel][place][lane() % 8][lane() / 8] = block.template scale<kSub>().v;
            if constexpr (Format::kMins) to.mins[panel][place][lane()] = block.template min<kSub>().v;
            unroll<kWords>([&](auto i) __attribute__((always_inline)) {
                store_codes(to, panel, place * kWords + decltype(i)::value,
                            block.template codes<kSub, decltype(i)::value>());
            });
        });
    }
}

// Unpacks a stretch of `size` elements with all threads, eight groups for each panel. Both groups of a warp
// do the same work, for one panel and its neighbour if there are several panels.
template <class Format>
CHASKI_INLINE void unpack(const Weights<Format>& from, int size, Unpacked<Format>& to) {
    for (int task = group(); task < 8 * kPanels; task += kThreads / kLanes) {
        constexpr int kBeside = kPanels == 1 ? 1 : 2;
        const int turn = task / kBeside % 8, panel = task / (8 * kBeside) * kBeside + task % kBeside;
        unpack_blocks<Format>(from.panels[panel], size / 32, panel, turn, to);
    }
}

// Starts copying a stretch of `size` elements of the tokens' activations. `sources`: the number of the first
// block of 32 elements of each token. 16 threads copy a token.
template <class Format>
CHASKI_INLINE void fetch_tokens(const Matmul& a, const uint32_t (&sources)[kTokens], int stretch, int size,
                                Activated<Format>& to) {
    const int own = static_cast<int>(threadIdx.x) % 16;
    const auto* values = reinterpret_cast<const uint8_t*>(a.values) + 16 * own;
    const auto* sums = reinterpret_cast<const int32_t*>(a.sums) + own % 8;
    constexpr bool kHasSums = Activated<Format>::kHasSums;
#pragma unroll
    for (int token = static_cast<int>(threadIdx.x) / 16; token < kTokens; token += kThreads / 16) {
        const uint32_t block = sources[token] + kSuperElements / 32 * stretch;
        if (16 * own < size) {
            device::copy_16(to.values[token] + 16 * own, values + static_cast<uint64_t>(block) * 32);
        }
        if (32 * (own % 8) >= size) continue;
        if (own < 8) {
            device::copy_4(&to.scales[token][own], reinterpret_cast<const int32_t*>(a.scales) + own + block);
        } else if (kHasSums) {
            device::copy_4(&to.sums[token][own - 8], sums + block);
        }
    }
}

// Converts a number of at most 22 bits to a float.
CHASKI_INLINE float to_float(int32_t x) { return device::as_float(0x4b400000 + x) - 12582912.0f; }

// The results of this thread: rows `row` and `row` + 8 of its warp's panel, and of each tile token 2 ·
// quarter and the next token. It passes the values of token `row` of a tile to the instructions.
struct Place {
    int panel;
    int tokens;  // the first of the warp
    int row;
    int quarter;

    CHASKI_INLINE Place() {
        const int own = static_cast<int>(threadIdx.x), warp = own / 32;
        panel = warp % kPanels;
        tokens = warp / kPanels * (8 * kTiles);
        row = own % 32 / 4;
        quarter = own % 4;
    }
    CHASKI_INLINE int column(int tile, int which) const { return tokens + 8 * tile + 2 * quarter + which; }
};

using Results = float[kTiles][4];

// The words of this thread: of 32 elements of a panel, and of the token that it passes.
template <class Format>
CHASKI_INLINE void load_codes(const Unpacked<Format>& from, const Place& own, int b, uint32_t (&a)[4]) {
    const auto* words =
        reinterpret_cast<const uint2*>(from.codes[own.panel][b][place_of(own.row, own.quarter)]);
    const uint2 first = words[own.panel % 2], second = words[1 - own.panel % 2];
    a[0] = first.x;
    a[1] = first.y;
    a[2] = second.x;
    a[3] = second.y;
}
template <class Format>
CHASKI_INLINE uint2 load_values(const Activated<Format>& from, const Place& own, int tile, int b) {
    const uint8_t* x = from.values[own.tokens + 8 * tile + own.row] + 32 * b;
    if constexpr (Format::kSub == 32) return reinterpret_cast<const uint2*>(x)[own.quarter];
    const auto* words = reinterpret_cast<const uint32_t*>(x);
    return {words[own.quarter], words[own.quarter + 4]};
}

template <class Format>
CHASKI_INLINE void multiply_blocks(const Unpacked<Format>& weights, const Activated<Format>& x,
                                   const Place& own, int count, Results& y) {
#pragma unroll 2
    for (int b = 0; b < count; ++b) {
        uint32_t a[4];
        constexpr int kSubs = 32 / Format::kSub;
        float scales[kSubs][2], mins[2] = {};
        load_codes(weights, own, b, a);
        for (int s = 0; s < kSubs; ++s) {
            const auto& two = weights.scales[own.panel][b * kSubs + s][own.row];
            const auto both = *reinterpret_cast<const float2*>(two);
            scales[s][0] = both.x;
            scales[s][1] = both.y;
        }
        for (int i = 0; i < 2; ++i) {
            if constexpr (Format::kMins) mins[i] = weights.mins[own.panel][b][own.row + 8 * i];
        }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const uint2 values = load_values(x, own, tile, b);
            float token_scales[2], token_sums[2] = {};
            for (int i = 0; i < 2; ++i) {
                const int token = own.column(tile, i);
                token_scales[i] = device::as_float(x.scales[token][b]);
                if constexpr (Format::kMins) {
                    const int32_t sums = x.sums[token][b];
                    const auto sum = static_cast<float>(static_cast<int16_t>(sums) + (sums >> 16));
                    token_sums[i] = -(token_scales[i] * sum);
                }
            }
            int32_t c[kSubs][4] = {};
            if constexpr (kSubs == 1) {
                device::multiply_32_ss(c[0], a, values.x, values.y);
            } else {
                device::multiply_16_ss(c[0], a[0], a[1], values.x);
                device::multiply_16_ss(c[1], a[2], a[3], values.y);
            }
            for (int i = 0; i < 4; ++i) {
                float& sum = y[tile][i];
                for (int s = 0; s < kSubs; ++s) {
                    sum = device::fma(to_float(c[s][i]), scales[s][i / 2] * token_scales[i % 2], sum);
                }
                if constexpr (Format::kMins) sum = device::fma(mins[i / 2], token_sums[i % 2], sum);
            }
        }
    }
}

template <class Format>
CHASKI_INLINE void multiply_panels(const Matmul& a) {
    const Share share(a.experts, a.n, kTokens);
    if (share.is_empty()) return;
    int64_t panel = static_cast<int64_t>(blockIdx.x) * kPanels;
    int which = 0;
    const auto padded_panels = [&](int64_t rows) {
        return (num_panels(rows) + kPanels - 1) / kPanels * kPanels;
    };
    while (panel >= padded_panels(a.parts[which].rows)) panel -= padded_panels(a.parts[which++].rows);
    const Part& part = a.parts[which];
    const uint8_t* matrix = part.panels + share.weights();
    auto& slab = *reinterpret_cast<Slab<Format>*>(device::shared());
    const int64_t last = num_panels(part.rows) - 1, bytes = panel_bytes(Format::kType, a.k);
    const int stretches = static_cast<int>((a.k + kSuperElements - 1) / kSuperElements);
    const auto size_of = [&](int stretch) {
        const int64_t left = a.k - static_cast<int64_t>(stretch) * kSuperElements;
        return static_cast<int>(left < kSuperElements ? left : kSuperElements);
    };
    for (int i = static_cast<int>(threadIdx.x); i < kTokens; i += kThreads) {
        slab.sources[i] = static_cast<uint32_t>(share.source(i) * (a.k / 32));
    }
    barrier();
    // This many threads copy a panel.
    constexpr int kCopiers = kThreads / kPanels;
    const int copied = static_cast<int>(threadIdx.x) / kCopiers,
              first = static_cast<int>(threadIdx.x) % kCopiers;
    const uint8_t* source = matrix + (panel + copied < last ? panel + copied : last) * bytes + 16 * first;
    // Copies the weights of a stretch and the activations of the previous one, which are needed at the same
    // time.
    const auto fetch = [&](int stretch) {
        if (stretch < stretches) {
            constexpr int kBytes = Weights<Format>::kBytes, kWords = kBytes / 16;
            const int words = size_of(stretch) / Format::kElements * Format::kBytes / 16;
            const uint8_t* from = source + static_cast<int64_t>(stretch) * kBytes;
            uint8_t* to = slab.weights[stretch % kStages].panels[copied] + 16 * first;
            const int left = words - first;
            unroll<(kWords + kCopiers - 1) / kCopiers>([&](auto i) __attribute__((always_inline)) {
                constexpr int kWord = decltype(i)::value * kCopiers;
                if (kWord < left) device::copy_16<16 * kWord>(to, from);
            });
        }
        if (const int before = stretch - 1; before >= 0 && before < stretches) {
            fetch_tokens(a, slab.sources, before, size_of(before), slab.tokens[before % (kStages - 1)]);
        }
        device::end_copies();
    };
    for (int stretch = 0; stretch < kStages - 1; ++stretch) fetch(stretch);
    device::wait_copies<kStages - 2>();
    barrier();
    unpack(slab.weights[0], size_of(0), slab.unpacked[0]);
    const Place own;
    Results y = {};
    for (int stretch = 0; stretch < stretches; ++stretch) {
        // Now this stretch's activations and the next one's weights have arrived, and no thread needs the
        // previous stretch.
        device::wait_copies<kStages - 3>();
        barrier();
        fetch(stretch + kStages - 1);
        if (const int next = stretch + 1; next < stretches) {
            unpack(slab.weights[next % kStages], size_of(next), slab.unpacked[next % 2]);
        }
        const auto& weights = slab.unpacked[stretch % 2];
        const auto& x = slab.tokens[stretch % (kStages - 1)];
        multiply_blocks(weights, x, own, size_of(stretch) / 32, y);
    }
    for (int tile = 0; tile < kTiles; ++tile) {
        for (int i = 0; i < 4; ++i) {
            const int64_t token = share.begin + own.column(tile, i % 2);
            const int64_t row = (panel + own.panel) * kLanes + own.row + i / 2 * 8;
            if (token >= share.end || row >= part.rows) continue;
            float sum = y[tile][i];
            if (part.bias != nullptr) sum = sum + part.bias[share.bias(part.rows) + row];
            const int64_t place = token * part.rows + row;
            if (part.residual != nullptr) sum = sum + part.residual[place];
            part.y[place] = sum;
        }
    }
}

// There is a thread block for each kPanels panels of all parts, and for each kTokens tokens.
CHASKI_KERNEL(matmul_many, Matmul) { multiply_panels<CHASKI_FORMAT>(a); }

}  // namespace chaski::CHASKI_ISA
