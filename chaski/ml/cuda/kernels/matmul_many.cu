// y = x · Wᵀ + bias + residual for a quantized W (CHASKI_FORMAT) and many tokens, by the rule in matmul.h,
// with the tensor instructions for int8.
//
// A block of threads has kPanels panels of 16 rows and kTokens tokens. For each 256 elements of k it unpacks
// the panels, codes less their offset as signed bytes, beside the values of its tokens, into shared memory;
// the next weights are on their way there meanwhile. A warp multiplies one panel by up to 64 tokens. A tensor
// instruction adds up 32 or 16 products, which is one sub-block; what is an integer has no order. Each thread
// has its results' floats, and adds to them in ascending k.
#include "experts.h"

namespace chaski::CHASKI_ISA {

constexpr int kPanels = CHASKI_PANELS, kTokens = CHASKI_TOKENS;
constexpr int kWarpTokens = kTokens < 128 ? kTokens / 2 : 64;
constexpr int kTiles = kWarpTokens / 8;  // of 8 tokens
constexpr int kWarps = kPanels * (kTokens / kWarpTokens), kThreads = 32 * kWarps;

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

// Words of shared memory from one line of 16 rows to the next, and bytes from one token to the next: lanes
// that read at the same time find different banks.
constexpr int kLine = 24, kTokenBytes = kSuperElements + 16;

// The shared memory of a block of threads, for 256 elements of k.
template <class Format>
struct Slab {
    static constexpr int kSub = Format::kSub, kSubs = kSuperElements / kSub;
    static constexpr int kStretch = kSuperElements / Format::kElements * Format::kBytes;

    uint32_t codes[kPanels][kSuperElements / 4][kLine];  // four elements of each of 16 rows
    int32_t scales[kPanels][kSubs][kLanes];              // integers, or floats, of sub-blocks
    float mins[kPanels][Format::kIsSuper ? 1 : kSubs][kLanes];
    int8_t min_codes[kPanels][kLanes][16];  // of super-blocks: a min for each of up to 16 sub-blocks
    float d[kPanels][kLanes];
    float dmin[kPanels][kLanes];
    alignas(16) uint8_t weights[kPanels][kStretch];  // as they are stored
    alignas(16) uint8_t values[kTokens][kTokenBytes];
    // As `Activations` has them: super-scales, or scales of blocks; and sums of 16 values.
    alignas(16) int32_t stored[kTokens][Format::kIsSuper ? 9 : 8];
    alignas(16) int32_t stored_sums[kTokens][8];
    alignas(8) int32_t shifts[8][kTokens];  // of super-blocks
    float units[kTokens];
    uint8_t low_sums[kTokens][16];  // of super-blocks: what mins are multiplied by, in two bytes
    int8_t high_sums[kTokens][16];
    float token_scales[kTokens][Format::kIsSuper ? 1 : 8];  // of blocks of 32
    float token_sums[kTokens][Format::kIsSuper ? 1 : 8];    // -(scale · sum)
};

// Elements of a super-block that share a min.
template <class Format>
CHASKI_INLINE constexpr int min_elements() {
    if constexpr (Format::kIsSuper) {
        return Format::kMinSub;
    } else {
        return 0;
    }
}

// Half of a group's turn: group number `turn` of the four of a panel takes every fourth pair of sub-blocks.
template <class Format>
CHASKI_INLINE void unpack_super_block(const Format& block, int panel, int turn, Slab<Format>& slab) {
    constexpr int kSub = Format::kSub;
    unroll<kSuperElements / kSub / 2>([&](auto pair) __attribute__((always_inline)) {
        constexpr int kPair = decltype(pair)::value, kFirst = first_of_pair<kSub, kPair>;
        if (kPair % 4 != turn) return;
        const int32_t scales = block.template scales<kPair>().v;
        const auto unpack = [&](auto sub, int32_t scale) __attribute__((always_inline)) {
            constexpr int kOwn = decltype(sub)::value;
            slab.scales[panel][kOwn][lane()] = scale;
            unroll<kSub / 4>([&](auto i) __attribute__((always_inline)) {
                const uint32_t codes = block.template codes<kOwn, decltype(i)::value>().v;
                slab.codes[panel][kOwn * (kSub / 4) + decltype(i)::value][lane()] =
                    device::subtract_bytes(codes, Format::kOffset);
            });
        };
        unpack(Index<kFirst>{}, static_cast<int16_t>(scales));
        unpack(Index<kFirst + kPairStep<kSub>>{}, scales >> 16);
    });
    if (turn == 0) slab.d[panel][lane()] = block.d().v;
    if constexpr (Format::kMins) {
        constexpr int kMinSub = Format::kMinSub;
        if (turn == 1) slab.dmin[panel][lane()] = block.dmin().v;
        unroll<kSuperElements / kMinSub / 2>([&](auto pair) __attribute__((always_inline)) {
            constexpr int kPair = decltype(pair)::value, kFirst = first_of_pair<kMinSub, kPair>;
            if (kPair % 4 != turn) return;
            const int32_t both = block.template mins<kPair>().v;
            slab.min_codes[panel][lane()][kFirst] = static_cast<int8_t>(both);
            slab.min_codes[panel][lane()][kFirst + kPairStep<kMinSub>] = static_cast<int8_t>(both >> 16);
        });
        if (kMinSub == 32) {
            for (int i = 8 + turn; i < 16; i += 4) slab.min_codes[panel][lane()][i] = 0;
        }
    }
}

// `count` sub-blocks of 32 from `begin` on, of blocks that lie behind each other.
template <class Format>
CHASKI_INLINE void unpack_blocks(const uint8_t* weights, int count, int panel, int turn, Slab<Format>& slab) {
    constexpr int kEach = Format::kElements / 32;
    for (int index = turn; index < count / kEach; index += 4) {
        const Format block{{weights + index * Format::kBytes}};
        unroll<kEach>([&](auto s) __attribute__((always_inline)) {
            constexpr int kSub = decltype(s)::value;
            const int place = index * kEach + kSub;
            slab.scales[panel][place][lane()] = device::as_int(block.template scale<kSub>().v);
            if constexpr (Format::kMins) slab.mins[panel][place][lane()] = block.template min<kSub>().v;
            unroll<8>([&](auto i) __attribute__((always_inline)) {
                const uint32_t codes = block.template codes<kSub, decltype(i)::value>().v;
                slab.codes[panel][place * 8 + decltype(i)::value][lane()] =
                    device::subtract_bytes(codes, Format::kOffset);
            });
        });
    }
}

// Each thread's items of `count` for each of kTokens tokens: f(token, number of the item). Neighbours have
// items of the same token, which lie side by side in memory.
template <int kCount, class F>
CHASKI_INLINE void for_items(const F& f) {
    for (int i = static_cast<int>(threadIdx.x); i < kTokens * kCount; i += kThreads)
        f(i / kCount, i % kCount);
}

// What mins are multiplied by, in two bytes.
template <class Format>
CHASKI_INLINE void store_sum(Slab<Format>& slab, int token, int sub, int32_t sum) {
    slab.low_sums[token][sub] = static_cast<uint8_t>(sum & 255);
    slab.high_sums[token][sub] = static_cast<int8_t>(sum >> 8);
}

// Has the activations of a share's tokens copied, `size` elements from `at` of k on.
template <class Format>
CHASKI_INLINE void fetch_tokens(const Matmul& a, const Share& share, int64_t at, int size,
                                Slab<Format>& slab) {
    const auto place = [&](int token) { return share.source(token) * a.k + at; };
    for_items<kSuperElements / 16>([&](int token, int word) {
        if (16 * word < size) {
            device::copy_16(slab.values[token] + 16 * word,
                            reinterpret_cast<const uint8_t*>(a.values + place(token) + 16 * word));
        }
    });
    if constexpr (Format::kIsSuper) {
        static_assert(sizeof(SuperScale) == 36);
        for_items<9>([&](int token, int word) {
            const SuperScale* from = a.supers + place(token) / kSuperElements;
            device::copy_4(&slab.stored[token][word], reinterpret_cast<const int32_t*>(from) + word);
        });
    } else {
        for_items<8>([&](int token, int b) {
            if (32 * b >= size) return;
            device::copy_4(&slab.stored[token][b],
                           reinterpret_cast<const int32_t*>(a.scales + place(token) / 32 + b));
        });
    }
    if constexpr (!Format::kIsSuper || min_elements<Format>() == 16) {
        for_items<8>([&](int token, int b) {
            if (32 * b >= size) return;
            device::copy_4(&slab.stored_sums[token][b],
                           reinterpret_cast<const int32_t*>(a.sums + place(token) / 16) + b);
        });
    }
}

// Lays out what was copied.
template <class Format>
CHASKI_INLINE void arrange_tokens(Slab<Format>& slab) {
    if constexpr (!Format::kIsSuper) {
        for_items<8>([&](int token, int b) {
            const float scale = device::as_float(slab.stored[token][b]);
            const int32_t sums = slab.stored_sums[token][b];
            slab.token_scales[token][b] = scale;
            slab.token_sums[token][b] =
                -(scale * static_cast<float>(static_cast<int16_t>(sums) + (sums >> 16)));
        });
        return;
    }
    // A super-scale is its unit and pairs of numbers of 16 bits: shifts, and sums.
    for_items<9>([&](int token, int word) {
        const int32_t x = slab.stored[token][word];
        if (word == 0) {
            slab.units[token] = device::as_float(x);
        } else if (word < 5) {
            slab.shifts[2 * word - 2][token] = static_cast<int16_t>(x);
            slab.shifts[2 * word - 1][token] = x >> 16;
        } else if constexpr (min_elements<Format>() == 32) {
            store_sum(slab, token, 2 * word - 10, static_cast<int16_t>(x));
            store_sum(slab, token, 2 * word - 9, x >> 16);
            store_sum(slab, token, 2 * word - 2, 0);
            store_sum(slab, token, 2 * word - 1, 0);
        }
    });
    if constexpr (min_elements<Format>() == 16) {
        for_items<8>([&](int token, int pair) {
            const int32_t sums = slab.stored_sums[token][pair], shifts = slab.stored[token][1 + pair / 2];
            const int shift = pair % 2 == 0 ? static_cast<int16_t>(shifts) : shifts >> 16;
            store_sum(slab, token, 2 * pair, static_cast<int16_t>(sums) << shift);
            store_sum(slab, token, 2 * pair + 1, (sums >> 16) << shift);
        });
    }
}

// A number of at most 22 bits as a float.
CHASKI_INLINE float to_float(int32_t x) { return device::as_float(0x4b400000 + x) - 12582912.0f; }

// What this thread has: rows `row` and `row` + 8 of a panel, and of each tile the tokens `column` and the
// next.
struct Place {
    int panel;
    int tokens;  // the first of the warp
    int row;
    int quarter;

    CHASKI_INLINE Place() {
        const int own = static_cast<int>(threadIdx.x), warp = own / 32;
        panel = warp % kPanels;
        tokens = warp / kPanels * kWarpTokens;
        row = own % 32 / 4;
        quarter = own % 4;
    }
};

template <class Format>
CHASKI_INLINE void multiply_super_block(const Slab<Format>& slab, const Place& own, float (&y)[kTiles][4]) {
    constexpr int kSub = Format::kSub;
    int32_t products[kTiles][4] = {};
#pragma unroll 2
    for (int b = 0; b < kSuperElements / 32; ++b) {
        uint32_t a[4];
        for (int i = 0; i < 4; ++i) {
            a[i] = slab.codes[own.panel][8 * b + own.quarter + i / 2 * 4][own.row + i % 2 * 8];
        }
        int32_t scales[2][2];  // of a half, of a row
        for (int i = 0; i < 4; ++i) {
            const int sub = kSub == 32 ? b : 2 * b + i / 2;
            scales[i / 2][i % 2] = slab.scales[own.panel][sub][own.row + i % 2 * 8];
        }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const int token = own.tokens + 8 * tile;
            const auto* x = reinterpret_cast<const uint32_t*>(slab.values[token + own.row] + 32 * b);
            const uint32_t low = x[own.quarter], high = x[own.quarter + 4];
            const auto both = *reinterpret_cast<const int2*>(slab.shifts[b] + token + 2 * own.quarter);
            const int32_t shifts[2] = {both.x, both.y};
            if constexpr (kSub == 32) {
                int32_t c[4] = {};
                device::multiply_32_ss(c, a, low, high);
                for (int i = 0; i < 4; ++i) products[tile][i] += c[i] * (scales[0][i / 2] << shifts[i % 2]);
            } else {
                int32_t c[4] = {}, e[4] = {};
                device::multiply_16_ss(c, a[0], a[1], low);
                device::multiply_16_ss(e, a[2], a[3], high);
                for (int i = 0; i < 4; ++i) {
                    products[tile][i] += (c[i] * scales[0][i / 2] + e[i] * scales[1][i / 2]) << shifts[i % 2];
                }
            }
        }
    }
    for (int tile = 0; tile < kTiles; ++tile) {
        int32_t mins[4] = {};
        const int token = own.tokens + 8 * tile;
        if constexpr (Format::kMins) {
            int32_t high[4] = {};
            const auto word = [&](const auto& rows, int row) {
                return reinterpret_cast<const uint32_t*>(rows[row])[own.quarter];
            };
            const uint32_t a0 = word(slab.min_codes[own.panel], own.row);
            const uint32_t a1 = word(slab.min_codes[own.panel], own.row + 8);
            device::multiply_16_uu(mins, a0, a1, word(slab.low_sums, token + own.row));
            device::multiply_16_ss(high, a0, a1, word(slab.high_sums, token + own.row));
            for (int i = 0; i < 4; ++i) mins[i] += high[i] * 256;
        }
        for (int i = 0; i < 4; ++i) {
            const int row = own.row + i / 2 * 8;
            float sum = static_cast<float>(products[tile][i]) * slab.d[own.panel][row];
            if constexpr (Format::kMins) {
                sum = device::fma(static_cast<float>(mins[i]), slab.dmin[own.panel][row], sum);
            }
            y[tile][i] = device::fma(sum, slab.units[token + 2 * own.quarter + i % 2], y[tile][i]);
        }
    }
}

template <class Format>
CHASKI_INLINE void multiply_blocks(const Slab<Format>& slab, const Place& own, int count,
                                   float (&y)[kTiles][4]) {
    for (int b = 0; b < count; ++b) {
        uint32_t a[4];
        for (int i = 0; i < 4; ++i) {
            a[i] = slab.codes[own.panel][8 * b + own.quarter + i / 2 * 4][own.row + i % 2 * 8];
        }
        float scales[2], mins[2] = {};
        for (int i = 0; i < 2; ++i) {
            scales[i] = device::as_float(slab.scales[own.panel][b][own.row + 8 * i]);
            if constexpr (Format::kMins) mins[i] = slab.mins[own.panel][b][own.row + 8 * i];
        }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const int token = own.tokens + 8 * tile;
            const auto* x = reinterpret_cast<const uint32_t*>(slab.values[token + own.row] + 32 * b);
            int32_t c[4] = {};
            device::multiply_32_ss(c, a, x[own.quarter], x[own.quarter + 4]);
            for (int i = 0; i < 4; ++i) {
                const int column = token + 2 * own.quarter + i % 2;
                y[tile][i] =
                    device::fma(to_float(c[i]), scales[i / 2] * slab.token_scales[column][b], y[tile][i]);
                if constexpr (Format::kMins) {
                    y[tile][i] = device::fma(mins[i / 2], slab.token_sums[column][b], y[tile][i]);
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
    const Place own;
    const int64_t last = num_panels(part.rows) - 1, bytes = panel_bytes(Format::kType, a.k);
    float y[kTiles][4] = {};
    const auto fetch = [&](int64_t at) {
        constexpr int kWords = Slab<Format>::kStretch / 16;
        const int64_t left = a.k - at < kSuperElements ? a.k - at : kSuperElements;
        const int words = static_cast<int>(left) / Format::kElements * Format::kBytes / 16;
        for (int i = static_cast<int>(threadIdx.x); i < kPanels * kWords; i += kThreads) {
            const int64_t from = panel + i / kWords < last ? panel + i / kWords : last;
            if (i % kWords < words) {
                device::copy_16(
                    slab.weights[i / kWords] + i % kWords * 16,
                    matrix + from * bytes + at / Format::kElements * Format::kBytes + i % kWords * 16);
            }
        }
    };
    fetch(0);
    device::end_copies();
    for (int64_t at = 0; at < a.k; at += kSuperElements) {
        const int size = static_cast<int>(a.k - at < kSuperElements ? a.k - at : kSuperElements);
        fetch_tokens(a, share, at, size, slab);
        device::end_copies();
        device::wait_copies<1>();
        barrier();
        // Both groups of a warp take the same turn, of one panel and its neighbour where there are several.
        for (int task = group(); task < 4 * kPanels; task += kThreads / kLanes) {
            constexpr int kBeside = kPanels == 1 ? 1 : 2;
            const int turn = task / kBeside % 4,
                      which_panel = task / (4 * kBeside) * kBeside + task % kBeside;
            const uint8_t* weights = slab.weights[which_panel];
            if constexpr (Format::kIsSuper) {
                unpack_super_block(Format{{weights}}, which_panel, turn, slab);
            } else {
                unpack_blocks<Format>(weights, size / 32, which_panel, turn, slab);
            }
        }
        device::wait_copies<0>();
        barrier();
        arrange_tokens(slab);
        if (at + kSuperElements < a.k) fetch(at + kSuperElements);
        device::end_copies();
        barrier();
        if constexpr (Format::kIsSuper) {
            multiply_super_block(slab, own, y);
        } else {
            multiply_blocks(slab, own, size / 32, y);
        }
        barrier();
    }
    for (int tile = 0; tile < kTiles; ++tile) {
        for (int i = 0; i < 4; ++i) {
            const int64_t token = share.begin + own.tokens + 8 * tile + 2 * own.quarter + i % 2;
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

// A block of threads for each kPanels panels of all parts, and for each kTokens tokens.
CHASKI_KERNEL(matmul_many, Matmul) { multiply_panels<CHASKI_FORMAT>(a); }

}  // namespace chaski::CHASKI_ISA
