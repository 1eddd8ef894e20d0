// y = x · Wᵀ + bias + residual for a quantized W (CHASKI_FORMAT) and many tokens, by the rule in matmul.h,
// with the tensor instructions for int8.
//
// A block of threads has kPanels panels of 16 rows and kTokens tokens, and goes along k, 256 elements at a
// time: a stretch. What is stored of the next stretches is on its way to shared memory. While one stretch is
// multiplied, the weights of the next one are unpacked there, codes less their offset as signed bytes, in the
// order that tensor instructions take. One of these adds up 32 or 16 products, which is one sub-block; what
// is an integer has no order. Each thread has its results' floats, and adds to them in ascending k.
#include "experts.h"

namespace chaski::CHASKI_ISA {

constexpr int kPanels = CHASKI_PANELS, kTokens = CHASKI_TOKENS, kStages = CHASKI_STAGES;
// Of a warp: panels, and tiles of 8 tokens. Those of 32 rows read the values of a token half as often.
constexpr int kOwnPanels = kPanels == 4 && kTokens == 128 ? 2 : 1;
constexpr int kTiles = kTokens >= 64 ? 4 : kTokens >= 32 ? 2 : 1;
constexpr int kRowWarps = kPanels / kOwnPanels, kWarps = kRowWarps * (kTokens / (8 * kTiles));
constexpr int kThreads = 32 * kWarps;
static_assert(kStages >= 3, "one is multiplied, the next one is unpacked, and another is on its way");

// A matrix, and where its results go.
struct Part {
    const uint8_t* panels;
    int64_t rows;
    float* y;
    const float* bias;
    const float* residual;
};

// Several matrices of one format that multiply the same activations; those behind the last have no rows.
struct Matmul {
    Part parts[3];
    int64_t k;
    const int8_t* values;
    const float* scales;
    const int16_t* sums;
    const SuperScale* supers;
    Count n;
    [[no_unique_address]] Experts experts;
};
static_assert(sizeof(Matmul) == 168 + kExpertsBytes, "as a launch packs it");

// Elements of a super-block that share a min, if any do.
template <class Format>
CHASKI_INLINE constexpr int min_elements() {
    if constexpr (Format::kIsSuper) {
        return Format::kMins ? Format::kMinSub : 0;
    } else {
        return 0;
    }
}

// A stretch as it is stored.
template <class Format>
struct Stored {
    static constexpr int kBytes = kSuperElements / Format::kElements * Format::kBytes;
    // From one token to the next, so that threads that read at the same time find different banks.
    static constexpr int kTokenBytes = kSuperElements + (Format::kSub == 32 ? 32 : 16);
    static constexpr bool kHasSums = Format::kMins && min_elements<Format>() != 32;

    alignas(16) uint8_t weights[kPanels][kBytes];
    alignas(16) uint8_t values[kTokens][kTokenBytes];
    // As `Activations` has them: super-scales, or scales of blocks; and sums of 16 values.
    alignas(16) int32_t scales[kTokens][Format::kIsSuper ? 9 : 8];
    alignas(16) int32_t sums[kHasSums ? kTokens : 1][8];
};

// The weights of a stretch as they are multiplied.
template <class Format>
struct Unpacked {
    static constexpr int kSubs = kSuperElements / Format::kSub;

    // Four words of each thread for each 32 elements: of rows g and g + 8, and then again with other
    // elements.
    alignas(16) uint32_t codes[kPanels][kSuperElements / 32][32][4];
    int32_t scales[kPanels][kSubs][kLanes];  // integers, or floats, of sub-blocks
    float mins[Format::kMins && !Format::kIsSuper ? kPanels : 1][kSubs][kLanes];
    alignas(16) int8_t min_codes[kPanels][kLanes][16];  // of super-blocks: of up to 16 sub-blocks
    float d[kPanels][kLanes];
    float dmin[kPanels][kLanes];
};

// The shared memory of a block of threads.
template <class Format>
struct Slab {
    int32_t sources[kTokens];  // the rows of the tokens' activations
    Stored<Format> stored[kStages];
    Unpacked<Format> unpacked[2];
};

// Where the words of thread 4 g + t lie among those of a warp: neighbours that store at the same time, and
// that read at the same time, find different banks.
CHASKI_INLINE int place_of(int g, int t) { return 4 * g + (t ^ (g / 2 & 3)); }

// Keeps word number `word` of the 64 of this lane's row. A thread multiplies neighbouring words of 32
// elements that have one scale, and a word of each half where both halves have one.
template <class Format>
CHASKI_INLINE void store_codes(Unpacked<Format>& to, int panel, int word, U8x64 codes) {
    const int i = word % 8, t = Format::kSub == 32 ? i / 2 : i % 4, half = Format::kSub == 32 ? i % 2 : i / 4;
    to.codes[panel][word / 8][place_of(lane() % 8, t)][2 * half + lane() / 8] =
        device::subtract_bytes(codes.v, Format::kOffset);
}

// A fourth of a panel's super-block: group number `turn` of the four takes every fourth pair of sub-blocks.
template <class Format>
CHASKI_INLINE void unpack_super_block(const Format& block, int panel, int turn, Unpacked<Format>& to) {
    constexpr int kSub = Format::kSub;
    unroll<kSuperElements / kSub / 2>([&](auto pair) __attribute__((always_inline)) {
        constexpr int kPair = decltype(pair)::value, kFirst = first_of_pair<kSub, kPair>;
        if (kPair % 4 != turn) return;
        const int32_t scales = block.template scales<kPair>().v;
        const auto unpack = [&](auto sub, int32_t scale) __attribute__((always_inline)) {
            constexpr int kOwn = decltype(sub)::value;
            to.scales[panel][kOwn][lane()] = scale;
            unroll<kSub / 4>([&](auto i) __attribute__((always_inline)) {
                store_codes(to, panel, kOwn * (kSub / 4) + decltype(i)::value,
                            block.template codes<kOwn, decltype(i)::value>());
            });
        };
        unpack(Index<kFirst>{}, static_cast<int16_t>(scales));
        unpack(Index<kFirst + kPairStep<kSub>>{}, scales >> 16);
    });
    if (turn == 0) to.d[panel][lane()] = block.d().v;
    if constexpr (Format::kMins) {
        constexpr int kMinSub = Format::kMinSub;
        if (turn == 1) to.dmin[panel][lane()] = block.dmin().v;
        unroll<kSuperElements / kMinSub / 2>([&](auto pair) __attribute__((always_inline)) {
            constexpr int kPair = decltype(pair)::value, kFirst = first_of_pair<kMinSub, kPair>;
            if (kPair % 4 != turn) return;
            const int32_t both = block.template mins<kPair>().v;
            to.min_codes[panel][lane()][kFirst] = static_cast<int8_t>(both);
            to.min_codes[panel][lane()][kFirst + kPairStep<kMinSub>] = static_cast<int8_t>(both >> 16);
        });
        if (kMinSub == 32) {
            for (int i = 8 + turn; i < 16; i += 4) to.min_codes[panel][lane()][i] = 0;
        }
    }
}

// `count` sub-blocks of 32, of blocks that lie behind each other.
template <class Format>
CHASKI_INLINE void unpack_blocks(const uint8_t* weights, int count, int panel, int turn,
                                 Unpacked<Format>& to) {
    constexpr int kEach = Format::kElements / 32;
    for (int index = turn; index < count / kEach; index += 4) {
        const Format block{{weights + index * Format::kBytes}};
        unroll<kEach>([&](auto s) __attribute__((always_inline)) {
            constexpr int kSub = decltype(s)::value;
            const int place = index * kEach + kSub;
            to.scales[panel][place][lane()] = device::as_int(block.template scale<kSub>().v);
            if constexpr (Format::kMins) to.mins[panel][place][lane()] = block.template min<kSub>().v;
            unroll<8>([&](auto i) __attribute__((always_inline)) {
                store_codes(to, panel, place * 8 + decltype(i)::value,
                            block.template codes<kSub, decltype(i)::value>());
            });
        });
    }
}

// Unpacks a stretch of `size` elements, by all threads. Both groups of a warp take the same turn, of one
// panel and its neighbour where there are several.
template <class Format>
CHASKI_INLINE void unpack(const Stored<Format>& from, int size, Unpacked<Format>& to) {
    for (int task = group(); task < 4 * kPanels; task += kThreads / kLanes) {
        constexpr int kBeside = kPanels == 1 ? 1 : 2;
        const int turn = task / kBeside % 4, panel = task / (4 * kBeside) * kBeside + task % kBeside;
        if constexpr (Format::kIsSuper) {
            unpack_super_block(Format{{from.weights[panel]}}, panel, turn, to);
        } else {
            unpack_blocks<Format>(from.weights[panel], size / 32, panel, turn, to);
        }
    }
}

// Each thread's items of `count` for each of `rows`: f(row, number of the item). Neighbours have items of the
// same row, which lie side by side in memory.
template <int kRows, int kCount, class F>
CHASKI_INLINE void for_items(const F& f) {
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kCount; i += kThreads) f(i / kCount, i % kCount);
}

// Has the activations of the tokens copied, `size` elements from `at` of k on.
template <class Format>
CHASKI_INLINE void fetch_tokens(const Matmul& a, const int32_t (&sources)[kTokens], int64_t at, int size,
                                Stored<Format>& to) {
    const auto place = [&](int token) { return sources[token] * a.k + at; };
    for_items<kTokens, kSuperElements / 16>([&](int token, int word) {
        if (16 * word < size) {
            device::copy_16(to.values[token] + 16 * word,
                            reinterpret_cast<const uint8_t*>(a.values + place(token) + 16 * word));
        }
    });
    if constexpr (Format::kIsSuper) {
        static_assert(sizeof(SuperScale) == 36);
        for_items<kTokens, 9>([&](int token, int word) {
            const SuperScale* from = a.supers + place(token) / kSuperElements;
            device::copy_4(&to.scales[token][word], reinterpret_cast<const int32_t*>(from) + word);
        });
    } else {
        for_items<kTokens, 8>([&](int token, int b) {
            if (32 * b >= size) return;
            device::copy_4(&to.scales[token][b],
                           reinterpret_cast<const int32_t*>(a.scales + place(token) / 32 + b));
        });
    }
    if constexpr (Stored<Format>::kHasSums) {
        for_items<kTokens, 8>([&](int token, int b) {
            if (32 * b >= size) return;
            device::copy_4(&to.sums[token][b],
                           reinterpret_cast<const int32_t*>(a.sums + place(token) / 16) + b);
        });
    }
}

// A number of at most 22 bits as a float.
CHASKI_INLINE float to_float(int32_t x) { return device::as_float(0x4b400000 + x) - 12582912.0f; }

// What this thread has: rows `row` and `row` + 8 of each panel of its warp, and of each tile the tokens
// 2 · quarter and the next. It brings the values of token `row` of a tile.
struct Place {
    int panel;   // the first of the warp
    int tokens;  // the first of the warp
    int row;
    int quarter;

    CHASKI_INLINE Place() {
        const int own = static_cast<int>(threadIdx.x), warp = own / 32;
        panel = warp % kRowWarps * kOwnPanels;
        tokens = warp / kRowWarps * (8 * kTiles);
        row = own % 32 / 4;
        quarter = own % 4;
    }
    CHASKI_INLINE int column(int tile, int which) const { return tokens + 8 * tile + 2 * quarter + which; }
};

using Results = float[kOwnPanels][kTiles][4];

// The words of this thread: of 32 elements of a panel, and of the token that it brings.
template <class Format>
CHASKI_INLINE void load_codes(const Unpacked<Format>& from, const Place& own, int panel, int b,
                              uint32_t (&a)[4]) {
    const auto& words = from.codes[own.panel + panel][b][place_of(own.row, own.quarter)];
    const auto four = *reinterpret_cast<const int4*>(words);
    a[0] = four.x;
    a[1] = four.y;
    a[2] = four.z;
    a[3] = four.w;
}
template <class Format>
CHASKI_INLINE uint2 load_values(const Stored<Format>& from, const Place& own, int tile, int b) {
    const uint8_t* x = from.values[own.tokens + 8 * tile + own.row] + 32 * b;
    if constexpr (Format::kSub == 32) return reinterpret_cast<const uint2*>(x)[own.quarter];
    const auto* words = reinterpret_cast<const uint32_t*>(x);
    return {words[own.quarter], words[own.quarter + 4]};
}

// What the mins of four sub-blocks are multiplied by, for the token that this thread brings: low and high
// bytes.
template <class Format>
CHASKI_INLINE uint2 load_sums(const Stored<Format>& from, const Place& own, int tile) {
    const int token = own.tokens + 8 * tile + own.row, t = own.quarter;
    const auto& scales = from.scales[token];
    if constexpr (min_elements<Format>() == 32) {
        if (t >= 2) return {0, 0};
        const auto x = static_cast<uint32_t>(scales[5 + 2 * t]), y = static_cast<uint32_t>(scales[6 + 2 * t]);
        return {device::select_bytes(x, y, 0x6420), device::select_bytes(x, y, 0x7531)};
    } else {
        uint2 bytes = {0, 0};
        for (int i = 0; i < 4; ++i) {
            const int32_t pair = from.sums[token][2 * t + i / 2], shifts = scales[1 + t];
            const int32_t sum = (i % 2 == 0 ? static_cast<int16_t>(pair) : pair >> 16)
                                << (i / 2 == 0 ? static_cast<int16_t>(shifts) : shifts >> 16);
            bytes.x |= static_cast<uint32_t>(sum & 255) << 8 * i;
            bytes.y |= static_cast<uint32_t>(sum >> 8 & 255) << 8 * i;
        }
        return bytes;
    }
}

template <class Format>
CHASKI_INLINE void multiply_super_block(const Unpacked<Format>& weights, const Stored<Format>& x,
                                        const Place& own, Results& y) {
    constexpr int kSub = Format::kSub;
    int32_t products[kOwnPanels][kTiles][4] = {};
#pragma unroll 1
    for (int pair = 0; pair < kSuperElements / 64; ++pair) {
        int32_t shifts[kTiles][2];
        for (int tile = 0; tile < kTiles; ++tile) {
            for (int i = 0; i < 2; ++i) shifts[tile][i] = x.scales[own.column(tile, i)][1 + pair];
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int b = 2 * pair + half;
            uint32_t a[kOwnPanels][4];
            int32_t scales[kOwnPanels][2][2];  // of a half, of a row
            for (int panel = 0; panel < kOwnPanels; ++panel) {
                load_codes(weights, own, panel, b, a[panel]);
                for (int i = 0; i < 4; ++i) {
                    const int sub = kSub == 32 ? b : 2 * b + i / 2;
                    scales[panel][i / 2][i % 2] = weights.scales[own.panel + panel][sub][own.row + i % 2 * 8];
                }
            }
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile) {
                const uint2 values = load_values(x, own, tile, b);
                for (int panel = 0; panel < kOwnPanels; ++panel) {
                    int32_t c[4] = {}, e[4] = {};
                    if constexpr (kSub == 32) {
                        device::multiply_32_ss(c, a[panel], values.x, values.y);
                    } else {
                        device::multiply_16_ss(c, a[panel][0], a[panel][1], values.x);
                        device::multiply_16_ss(e, a[panel][2], a[panel][3], values.y);
                    }
                    for (int i = 0; i < 4; ++i) {
                        const int32_t shift = shifts[tile][i % 2] >> 16 * half;
                        int32_t& sum = products[panel][tile][i];
                        const auto& own_scales = scales[panel];
                        if constexpr (kSub == 32) {
                            sum += c[i] * device::shift_left(own_scales[0][i / 2], shift);
                        } else {
                            sum += device::shift_left(
                                c[i] * own_scales[0][i / 2] + e[i] * own_scales[1][i / 2], shift);
                        }
                    }
                }
            }
        }
    }
    for (int tile = 0; tile < kTiles; ++tile) {
        const uint2 sums = Format::kMins ? load_sums(x, own, tile) : uint2{};
        float units[2];
        for (int i = 0; i < 2; ++i) units[i] = device::as_float(x.scales[own.column(tile, i)][0]);
        for (int panel = 0; panel < kOwnPanels; ++panel) {
            int32_t mins[4] = {};
            const int which = own.panel + panel;
            if constexpr (Format::kMins) {
                int32_t high[4] = {};
                const auto word = [&](int row) {
                    return reinterpret_cast<const uint32_t*>(weights.min_codes[which][row])[own.quarter];
                };
                const uint32_t a0 = word(own.row), a1 = word(own.row + 8);
                device::multiply_16_uu(mins, a0, a1, sums.x);
                device::multiply_16_ss(high, a0, a1, sums.y);
                for (int i = 0; i < 4; ++i) mins[i] += high[i] * 256;
            }
            for (int i = 0; i < 4; ++i) {
                const int row = own.row + i / 2 * 8;
                float sum = static_cast<float>(products[panel][tile][i]) * weights.d[which][row];
                if constexpr (Format::kMins) {
                    sum = device::fma(static_cast<float>(mins[i]), weights.dmin[which][row], sum);
                }
                y[panel][tile][i] = device::fma(sum, units[i % 2], y[panel][tile][i]);
            }
        }
    }
}

template <class Format>
CHASKI_INLINE void multiply_blocks(const Unpacked<Format>& weights, const Stored<Format>& x, const Place& own,
                                   int count, Results& y) {
#pragma unroll 1
    for (int b = 0; b < count; ++b) {
        uint32_t a[kOwnPanels][4];
        float scales[kOwnPanels][2], mins[kOwnPanels][2] = {};
        for (int panel = 0; panel < kOwnPanels; ++panel) {
            load_codes(weights, own, panel, b, a[panel]);
            for (int i = 0; i < 2; ++i) {
                const int which = own.panel + panel, row = own.row + 8 * i;
                scales[panel][i] = device::as_float(weights.scales[which][b][row]);
                if constexpr (Format::kMins) mins[panel][i] = weights.mins[which][b][row];
            }
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
            for (int panel = 0; panel < kOwnPanels; ++panel) {
                int32_t c[4] = {};
                device::multiply_32_ss(c, a[panel], values.x, values.y);
                for (int i = 0; i < 4; ++i) {
                    float& sum = y[panel][tile][i];
                    sum = device::fma(to_float(c[i]), scales[panel][i / 2] * token_scales[i % 2], sum);
                    if constexpr (Format::kMins) {
                        sum = device::fma(mins[panel][i / 2], token_sums[i % 2], sum);
                    }
                }
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
        slab.sources[i] = static_cast<int32_t>(share.source(i));
    }
    barrier();
    const auto fetch = [&](int stretch) {
        if (stretch < stretches) {
            constexpr int kWords = Stored<Format>::kBytes / 16;
            const int64_t at = static_cast<int64_t>(stretch) * kSuperElements;
            const int size = size_of(stretch), words = size / Format::kElements * Format::kBytes / 16;
            auto& to = slab.stored[stretch % kStages];
            for_items<kPanels, kWords>([&](int own, int word) {
                const int64_t from = panel + own < last ? panel + own : last;
                if (word < words) {
                    device::copy_16(
                        to.weights[own] + word * 16,
                        matrix + from * bytes + at / Format::kElements * Format::kBytes + word * 16);
                }
            });
            fetch_tokens(a, slab.sources, at, size, to);
        }
        device::end_copies();
    };
    for (int stretch = 0; stretch < kStages - 1; ++stretch) fetch(stretch);
    device::wait_copies<kStages - 2>();
    barrier();
    unpack(slab.stored[0], size_of(0), slab.unpacked[0]);
    const Place own;
    Results y = {};
    for (int stretch = 0; stretch < stretches; ++stretch) {
        // Now the next stretch is there, and nobody needs the one before any more.
        device::wait_copies<kStages - 3>();
        barrier();
        fetch(stretch + kStages - 1);
        if (stretch + 1 < stretches) {
            unpack(slab.stored[(stretch + 1) % kStages], size_of(stretch + 1),
                   slab.unpacked[(stretch + 1) % 2]);
        }
        const auto& weights = slab.unpacked[stretch % 2];
        const auto& x = slab.stored[stretch % kStages];
        if constexpr (Format::kIsSuper) {
            multiply_super_block(weights, x, own, y);
        } else {
            multiply_blocks(weights, x, own, size_of(stretch) / 32, y);
        }
    }
    for (int tile = 0; tile < kTiles; ++tile) {
        for (int i = 0; i < 4 * kOwnPanels; ++i) {
            const int64_t token = share.begin + own.column(tile, i % 2);
            const int64_t row = (panel + own.panel + i / 4) * kLanes + own.row + i % 4 / 2 * 8;
            if (token >= share.end || row >= part.rows) continue;
            float sum = y[i / 4][tile][i % 4];
            if (part.bias != nullptr) sum = sum + part.bias[share.bias(part.rows) + row];
            const int64_t place = token * part.rows + row;
            if (part.residual != nullptr) sum = sum + part.residual[place];
            part.y[place] = sum;
        }
    }
}

// A block of threads for each kPanels panels of all parts, and for each kTokens tokens.
CHASKI_KERNEL(matmul_many, Matmul) { multiply_panels<CHASKI_FORMAT>(a); }

}  // namespace chaski::CHASKI_ISA
