// Many tokens (more than kStreamTokens). The kernel unpacks a few panels at a time, for a step of k, to a
// slab that fits the first-level cache; then all tokens pass, in register tiles of P panels by N tokens. Sums
// are stored in scratch memory between steps, which does not change their bits.
//
//   for each block of tokens, group of panels, step of k:     prepare the numbers of all tokens
//       for each few panels of the group, or all of them:     unpack them to the slab
//           for each N tokens, P panels:                      sums in registers += slab * activations
//
// A kernel K defines kStep (elements of a step), kSub (elements between two prefetches), P and N (the largest
// tile), kSmallest (the tokens of the smallest tile), kGroup, kFewPanels (panels in the slab, unless the slab
// holds the whole group, as in some variants; 0 if it always does), kSlab (bytes of the slab of a panel),
// unpack_of (the function that makes the slab), and Tokens<N>: the data of N tokens for a step, made from a
// TileInput, with add<P>(slab, elements, sums, prefetch). If products come through memory, K has a type
// Products for them, and Tokens<N> works in two parts: multiply(slab, elements, products, meanwhile) calls
// meanwhile() at intervals, and add(first, slab, elements, products, before, y) adds the products of kAtOnce
// tokens to their sums.
#pragma once

#include <new>
#include <span>

#include "finish.h"
#include "matmul.h"
#include "tiles.h"
#include "unpack.h"
#include "variants.h"

namespace chaski::CHASKI_ISA {

// The tokens of a tile, and their elements that a step multiplies.
struct TileInput {
    const Unpacker& u;
    const Activations& x;
    int64_t k;      // elements of a token
    int64_t token;  // the first
    int size;       // tokens
    int64_t at;     // the first element
    int elements;
    bool is_kept;  // used for several slabs between other tiles; else it may be read in place

    // The first element of token n of the tile.
    int64_t first_of(int n) const { return (token + n) * k + at; }
};

template <int P, int N>
struct Sums {
    F32x16 v[P][N];

    template <class Before>
    CHASKI_INLINE void take(const Before& before) {
#pragma GCC unroll 32
        for (int i = 0; i < P * N; ++i) v[i / N][i % N] = before(i);
    }
};

// Prefetches the data of later work gradually to the second-level cache.
struct Later {
    std::span<const Stretch> stretches;
    int64_t share = 64;  // bytes for each call
    int64_t at = 0;      // of the first stretch

    CHASKI_INLINE void fetch() {
        for (int64_t done = 0; done < share && !stretches.empty(); done += 64) {
            __builtin_prefetch(static_cast<const uint8_t*>(stretches.front().place) + at, 0, 2);
            at += 64;
            if (at < stretches.front().bytes) continue;
            at = 0;
            stretches = stretches.subspan(1);
        }
    }

    // `calls`: number of calls of `fetch`.
    static Later of(std::span<const Stretch> stretches, int64_t calls) {
        int64_t lines = 0;
        for (const Stretch& stretch : stretches) lines += (stretch.bytes + 63) / 64;
        return {stretches, 64 * ((lines + calls - 1) / calls)};
    }
};

// Prefetches the panel bytes that are unpacked next, gradually, while the kernels compute.
template <int P>
struct Prefetch {
    const uint8_t* next[P];  // of each of the tile's panels
    int64_t left;            // bytes of each panel, for this tile
    int64_t share;           // of these bytes, for each call
    Later& later;

    CHASKI_INLINE void fetch() {
        later.fetch();
        const int64_t bytes = left < share ? left : share;
        for (int64_t line = 0; line < bytes; line += 64) {
            for (const uint8_t* place : next) __builtin_prefetch(place + line);
        }
        for (const uint8_t*& place : next) place += bytes;
        left -= bytes;
    }
};

// True for kernels whose products pass through memory.
template <class K>
concept HasProducts = requires { typename K::Products; };

// The tokens of the smallest tile in a product of `least` or more tokens with tiles of up to `largest`.
// Smaller tiles need not be compiled.
constexpr int smallest_tile(int largest, int least) {
    int smallest = largest;
    for (int tokens = least; tokens <= kTokenBlock; ++tokens) {
        const int tiles = (tokens + largest - 1) / largest;
        if (tokens / tiles < smallest) smallest = tokens / tiles;
    }
    return smallest;
}

// True for kernels that may pass the tokens more than once in a step of k, so that the tokens' data are kept.
template <class K>
inline constexpr bool kKeepsTokens = K::kFewPanels > 0;

// The prefetch distance in panels if the slab holds a few panels: far enough for memory to respond.
inline constexpr int kPanelsAhead = 4;

// One call of matmul. Panels and tokens count from the first of the current group or block.
template <class K>
struct Product {
    using Kept = typename K::template Tokens<K::N>;  // the largest tile's

    const Unpacker& u;
    const Matrix& w;
    const Activations& x;
    const Output& out;
    const Variant& variant;
    uint8_t* slab;  // [panel of the slab][K::kSlab]
    Kept* brought;  // [tile of tokens]
    F32x16* sums;   // [tile of tokens][panel][token of the tile]

    const Unpack unpack = K::unpack_of(u);
    const PanelPlaces places{w.type, w.k};
    const int64_t step_bytes = kLanes * row_bytes(w.type, K::kStep);  // of one panel
    int64_t first_panel = 0, first_token = 0;
    int panels = 0, tokens = 0;
    int64_t at = 0;  // of k
    int elements = 0;
    int first_of_slab = 0, in_slab = 0;   // panels
    const uint8_t* next[K::kGroup] = {};  // prefetched for each of them
    int64_t next_share = 0;               // bytes for each tile of tokens
    Later later{};

    // Number of panels that are unpacked together.
    int64_t group_panels() const { return variant.group < K::kGroup ? variant.group : K::kGroup; }
    // True if the slab holds kFewPanels panels, false if it holds the whole group.
    bool has_small_slab() const { return kKeepsTokens<K> && !variant.whole_group; }

    void run(int64_t begin, int64_t end, int64_t n) {
        const int64_t most = variant.token_block < kTokenBlock ? variant.token_block : kTokenBlock;
        const int64_t blocks = (n + most - 1) / most;
        later = Later::of(
            {out.later, static_cast<size_t>(out.num_later)},
            (w.k + K::kSub - 1) / K::kSub * ((end - begin + K::P - 1) / K::P) * ((n + K::N - 1) / K::N));
        // Blocks have about the same size, so that the last one is not too small; all others contain whole
        // tiles.
        const auto begin_of = [&](int64_t block) {
            return block == blocks ? n : (n * block / blocks + K::N - 1) / K::N * K::N;
        };
        for (int64_t block = 0; block < blocks; ++block) {
            first_token = begin_of(block);
            tokens = static_cast<int>(begin_of(block + 1) - first_token);
            for (first_panel = begin; first_panel < end; first_panel += group_panels()) {
                const int64_t left = end - first_panel;
                panels = static_cast<int>(left < group_panels() ? left : group_panels());
                group();
            }
        }
    }

    void group() {
        const int num_tiles = (tokens + K::N - 1) / K::N;
        const int slab_panels = has_small_slab() ? K::kFewPanels : panels;
        next_share = (step_bytes / num_tiles + 63) / 64 * 64;
        for (at = 0; at < w.k; at += K::kStep) {
            elements = static_cast<int>(w.k - at < K::kStep ? w.k - at : K::kStep);
            for (first_of_slab = 0; first_of_slab < panels; first_of_slab += slab_panels) {
                in_slab = panels - first_of_slab < slab_panels ? panels - first_of_slab : slab_panels;
                for (int p = 0; p < in_slab; ++p) {
                    unpack(blocks(first_panel + first_of_slab + p, at), elements, slab + p * K::kSlab);
                    next[p] = behind(first_of_slab + p, has_small_slab() ? kPanelsAhead : panels);
                }
                for (int t = 0; t < num_tiles; ++t) {
                    const int begin = tokens * t / num_tiles;
                    tile_of(tokens * (t + 1) / num_tiles - begin, t, begin);
                }
            }
        }
    }

    // The memory for unpacking `count` panels after a panel of the group.
    const uint8_t* behind(int panel, int count) const {
        int64_t from = at;
        for (panel += count; panel >= panels; panel -= panels) from += K::kStep;
        return from < w.k ? to_fetch(first_panel + panel, from)
                          : to_fetch(first_panel + group_panels() + panel, 0);
    }

    // The first line of a panel's blocks from element `from` of k on, a multiple of the step.
    const uint8_t* blocks(int64_t panel, int64_t from) const {
        return w.panels + places.start_of(panel) + from / K::kStep * places.interleaved * step_bytes;
    }
    // The memory to prefetch for a panel, as many bytes as its step has. Each of two interleaved panels takes
    // half of the lines of both.
    const uint8_t* to_fetch(int64_t panel, int64_t from) const {
        const int64_t index = places.index_of(panel);
        return blocks(panel - index, from) + index * step_bytes;
    }

    // Tile number t: `size` tokens from `token` on, in the smallest tile that holds them.
    template <int N = K::N>
    void tile_of(int size, int t, int token) {
        if constexpr (N > K::kSmallest) {
            if (size < N) return tile_of<N - 1>(size, t, token);
        }
        tile<N>(size, t, token);
    }

    // Multiplies the tile by all panels of the slab.
    template <int N>
    __attribute__((noinline)) void tile(int size, int t, int token) {
        using Tokens = typename K::template Tokens<N>;
        auto* place = reinterpret_cast<Tokens*>(brought + (has_small_slab() ? t : 0));
        if (first_of_slab == 0) {
            const TileInput in{u, x, w.k, first_token + token, size, at, elements, has_small_slab()};
            new (place) Tokens(in);
        }
        const Tokens& tile = *place;
        if constexpr (HasProducts<K>) {
            add_behind(tile, size, t, token);
        } else {
            int panel = 0;
            for (; panel + K::P <= in_slab; panel += K::P) add<K::P>(tile, size, panel, t, token);
            if constexpr (K::P > 1) {
                for (; panel < in_slab; ++panel) add<1>(tile, size, panel, t, token);
            }
        }
    }

    // The prefetching of tile number t while it passes P panels.
    template <int P>
    CHASKI_INLINE Prefetch<P> prefetch_of(int panel, int t) {
        const int64_t left = step_bytes - t * next_share;
        Prefetch<P> prefetch{.next = {},
                             .left = left < next_share ? left : next_share,
                             .share = (next_share * K::kSub / K::kStep + 63) / 64 * 64,
                             .later = later};
        for (int p = 0; p < P; ++p) prefetch.next[p] = next[panel + p] + t * next_share;
        return prefetch;
    }

    // Multiplies the tile by a panel, and adds up the products of the previous panel, which are in memory by
    // then.
    template <class Tile>
    CHASKI_INLINE void add_behind(const Tile& tile, int size, int t, int token) {
        typename K::Products products[2];
        for (int panel = 0; panel <= panels; ++panel) {
            const int last = panel - 1;
            int added = last < 0 ? size : 0;  // tokens of the last panel
            const auto add_some = [&]() __attribute__((always_inline)) {
                if (added >= size) return;
                F32x16* kept = kept_sums(t, last) + added;
                const auto before = [&](int i) __attribute__((always_inline)) {
                    return at == 0 ? splat(0.0f) : kept[i];
                };
                F32x16 y[K::kAtOnce];
                tile.add(added, slab + last * K::kSlab, elements, products[last % 2], before, y);
#pragma GCC unroll 16
                for (int i = 0; i < K::kAtOnce; ++i) kept[i] = y[i];
                added += K::kAtOnce;
            };
            if (panel < panels) {
                Prefetch<1> prefetch = prefetch_of<1>(panel, t);
                const auto meanwhile = [&]() __attribute__((always_inline)) {
                    prefetch.fetch();
                    add_some();
                };
                tile.multiply(slab + panel * K::kSlab, elements, products[panel % 2], meanwhile);
            }
            while (added < size) add_some();
        }
        if (at + elements == w.k) finish_tile(size, t, token);
    }

    // Goes token by token, since the results of a token are adjacent.
    void finish_tile(int size, int t, int token) {
        for (int n = 0; n < size; ++n) {
            for (int panel = 0; panel < panels; ++panel) {
                finish(kept_sums(t, panel)[n], out, first_token + token + n, kLanes * (first_panel + panel),
                       rows_in_panel(w, first_panel + panel));
            }
        }
    }

    F32x16* kept_sums(int t, int panel) const { return sums + (t * K::kGroup + panel) * K::N; }

    // `panel` of the slab.
    template <int P, template <int> class Tokens, int N>
    CHASKI_INLINE void add(const Tokens<N>& tile, int size, int panel, int t, int token) {
        Prefetch<P> prefetch = prefetch_of<P>(panel, t);
        F32x16* kept = kept_sums(t, first_of_slab + panel);
        // The sums so far, one by one: a kernel reads each when it has a register for it.
        const auto before = [&](int i)
                                __attribute__((always_inline)) { return at == 0 ? splat(0.0f) : kept[i]; };
        Sums<P, N> y;
        tile.add(slab + panel * K::kSlab, elements, before, y, prefetch);
        if (at + elements < w.k) {
#pragma GCC unroll 32
            for (int i = 0; i < P * N; ++i) kept[i] = y.v[i / N][i % N];
            return;
        }
#pragma GCC unroll 32
        for (int i = 0; i < P * N; ++i) {  // unrolling makes the index constant, so y can stay in registers
            const int64_t row = kLanes * (first_panel + first_of_slab + panel + i / N);
            if (i % N < size) {
                finish(y.v[i / N][i % N], out, first_token + token + i % N, row,
                       rows_in_panel(w, row / kLanes));
            }
        }
    }
};

// The number of tiles of the largest block of n tokens.
template <class K>
CHASKI_INLINE int64_t most_tiles(int64_t n) {
    return ((n < kTokenBlock ? n : kTokenBlock) + K::N - 1) / K::N;
}

template <class K>
static void run_product(const Unpacker& u, const Matrix& w, int64_t begin, int64_t end, const Activations& x,
                        int64_t n, const Output& out, void* scratch,
                        const Variant& variant = kManyVariants[0]) {
    auto* sums = static_cast<F32x16*>(scratch);
    auto* brought = reinterpret_cast<typename Product<K>::Kept*>(sums + K::kGroup * most_tiles<K>(n) * K::N);
    auto* slab = reinterpret_cast<uint8_t*>(brought + (kKeepsTokens<K> ? most_tiles<K>(n) : 1));
    Product<K>{.u = u,
               .w = w,
               .x = x,
               .out = out,
               .variant = variant,
               .slab = slab,
               .brought = brought,
               .sums = sums}
        .run(begin, end, n);
}

template <class K>
CHASKI_INLINE int64_t product_scratch_bytes(int64_t n) {
    const int64_t tiles = most_tiles<K>(n);
    return K::kGroup * tiles * K::N * static_cast<int64_t>(sizeof(F32x16)) +
           (kKeepsTokens<K> ? tiles : 1) * static_cast<int64_t>(sizeof(typename Product<K>::Kept)) +
           K::kGroup * K::kSlab;
}

}  // namespace chaski::CHASKI_ISA
