// Many tokens on processors with tile registers (AMX-INT8). One instruction computes the products of 16
// tokens and 16 rows over up to 64 elements of k. It adds int8 times int8 exactly, so the results have the
// same bits as everywhere.
//
//   tile A   16 tokens, one per row: their int8 values        (copied together first, a step of k at a time)
//   tile B   lines of the slab, with signed numbers: 4 of k a row, 16 matrix rows across
//   tile C   the int32 sums: a row for each token, lanes are matrix rows as in every other kernel
//
// Tiles C reach vectors through memory. Meanwhile vectors of 512 bits run at half speed, so the work on the
// sums of a tile limits these kernels.
#pragma once

#include "coefficients.h"
#include "pieces.h"
#include "product.h"
#include "super_blocks.h"

namespace chaski::CHASKI_ISA {

constexpr int kTileRows = 16;
constexpr int kAmxTokens = 32;  // with fewer, the vector kernels are faster, except for one full tile

// Shapes of the tile registers.
struct alignas(64) TileShapes {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int begin, int end, int num_rows, int bytes) {
        for (int tile = begin; tile < end; ++tile) {
            rows[tile] = static_cast<uint8_t>(num_rows);
            row_bytes[tile] = static_cast<uint16_t>(bytes);
        }
    }
};

using TileSums = int32_t[kTileRows][kLanes];

// Four C, to have several products in flight; two A; two B. Sub-block S uses C number S % 4, and A and B
// number S % 2.
template <int kTileSub>
static TileShapes shapes_of_sub_blocks() {
    TileShapes shapes;
    shapes.set(0, 4, kTileRows, 64);
    shapes.set(4, 6, kTileRows, kTileSub);
    shapes.set(6, 8, kTileSub / 4, 64);
    return shapes;
}

// sums = A (16 rows, `stride` apart) times B (lines of a sub-block), in the registers of sub-block S.
template <int S, int kStride, int kTileSub>
CHASKI_INLINE void multiply_sub_block(const int8_t* a, const uint8_t* b, TileSums& sums) {
    constexpr int C = S % 4, A = 4 + S % 2, B = 6 + S % 2;
    load_tile<A, (kTileRows - 1) * kStride + kTileSub>(a, kStride);
    load_tile<B, kLanes * kTileSub>(b, 64);
    clear_tile<C>();
    multiply_tiles<C, A, B>();
    store_tile<C>(sums);
}

// The int8 values of a tile's tokens for `kStep` elements, stored together.
template <int kStep>
struct TileValues {
    alignas(64) int8_t of[kTileRows][kStep];

    TileValues(const Activations& x, int64_t k, int64_t token, int size, int64_t at, int elements) {
        for (int n = 0; n < size; ++n) {
            const int8_t* from = x.values + (token + n) * k + at;
            for (int e = 0; e < elements; e += 32) __builtin_memcpy(of[n] + e, from + e, 32);
        }
    }
};

// Calls step<S>(s) for s = 0, 1, ... below `count`; S = s % 4 selects the registers.
template <class F>
CHASKI_INLINE void for_each_by_four(int count, const F& step) {
    for (int s = 0; s < count; s += 4) {
        unroll<4>([&](auto i) __attribute__((always_inline)) { step(i, s + i); });
    }
}

template <bool kHasMins, int kTileSub = 32>
struct AmxQuantized {
    static constexpr int kStep = 512;
    static constexpr int kSub = kTileSub;
    static constexpr int kSubs = 32 / kSub;  // of a block
    static constexpr int P = 1, N = kTileRows;
    static constexpr int kSmallest = N;  // smaller tiles leave rows of the tile registers unused
    static constexpr int kGroup = 8, kFewPanels = 0;
    static Unpack unpack_of(const Unpacker& u) { return u.unpack_for_tiles; }
    static TileShapes shapes() { return shapes_of_sub_blocks<kSub>(); }
    static constexpr int kBytes = kBlockBytes<kHasMins, kSub>;
    static constexpr int kSlab = kStep / 32 * kBytes;
    static constexpr int kLag = 2;  // reading a tile back immediately would wait for it

    template <int kTokens>
    struct Tokens {
        Coefficients<kHasMins, kStep / 32, kTokens, false> c;
        TileValues<kStep> values;

        explicit Tokens(const TileInput& in) : values(in.x, in.k, in.token, in.size, in.at, in.elements) {
            c.fill(in.x, in.k, in.token, in.size, in.at, in.elements / 32, 0);
            c.clear(in.size);
        }

        // Multiplies sub-block s, and applies the sums of an earlier one.
        template <class Before>
        CHASKI_INLINE void add(const uint8_t* slab, int elements, const Before& before, Sums<1, kTokens>& y,
                               Prefetch<1>& prefetch) const {
            y.take(before);
            alignas(64) TileSums isum[4];
            const int subs = elements / kSub;
            for_each_by_four(subs + kLag, [&](auto i, int s) __attribute__((always_inline)) {
                constexpr int S = i.value;
                if (s < subs) {
                    const uint8_t* lines = slab + s / kSubs * kBytes + kLanes * kSub * (s % kSubs);
                    multiply_sub_block<S, kStep, kSub>(values.of[0] + s * kSub, lines, isum[S]);
                    prefetch.fetch();
                }
                const int earlier = s - kLag;
                if (earlier >= 0 && earlier < subs) apply(isum[(S + 4 - kLag) % 4], slab, earlier, y);
            });
        }

        CHASKI_INLINE void apply(const TileSums& isum, const uint8_t* slab, int s,
                                 Sums<1, kTokens>& y) const {
            const int b = s / kSubs;
            const auto* scales = reinterpret_cast<const float*>(slab + b * kBytes + kLanes * 32);
            const F32x16 scale = load_f32(scales + kLanes * (s % kSubs));
#pragma GCC unroll 16
            for (int n = 0; n < kTokens; ++n) {
                y.v[0][n] = fma(to_f32(load_i32(isum[n])), scale * splat(c.scale[n][b]), y.v[0][n]);
            }
            if constexpr (kHasMins) {
                const F32x16 min = load_f32(scales + kLanes);
#pragma GCC unroll 16
                for (int n = 0; n < kTokens; ++n) y.v[0][n] = fma(min, splat(c.sum[n][b]), y.v[0][n]);
            }
        }
    };
};

// Super-blocks with sub-blocks and mins of 32 elements.
struct AmxSuperQuantized {
    using Slab = SuperSlab<32, 32>;
    static constexpr int kStep = kSuperElements;
    static constexpr int kSub = 32;
    static constexpr int P = 1, N = kTileRows;
    static constexpr int kSmallest = N;  // smaller tiles leave rows of the tile registers unused
    static constexpr int kGroup = 8, kFewPanels = 0;
    static Unpack unpack_of(const Unpacker& u) { return u.unpack_for_tiles; }
    static TileShapes shapes() { return shapes_of_sub_blocks<kSub>(); }
    static constexpr int kSlab = Slab::kBytes;
    static constexpr int kSubs = kStep / kSub;

    template <int kTokens>
    struct Tokens {
        SuperTerms terms[kTokens];
        TileValues<kStep> values;

        explicit Tokens(const TileInput& in) : values(in.x, in.k, in.token, in.size, in.at, in.elements) {
            for (int n = 0; n < in.size; ++n) terms[n].template fill<kSub, kSub>(in.x, in.first_of(n), 0);
            for (int n = in.size; n < kTokens; ++n) terms[n] = {};  // data there may be slow
        }

        // Multiplies sub-block s, and applies the sums of the pair before the one that it belongs to.
        template <class Before>
        CHASKI_INLINE void add(const uint8_t* slab, int, const Before& before, Sums<1, kTokens>& y,
                               Prefetch<1>& prefetch) const {
            alignas(64) TileSums isum[4];
            I32x16 products[kTokens];
            for (I32x16& sum : products) sum = splat(0);
            for_each_by_four(kSubs + 2, [&](auto i, int s) __attribute__((always_inline)) {
                constexpr int S = i.value;
                if (s < kSubs) {
                    multiply_sub_block<S, kStep, kSub>(values.of[0] + s * kSub, slab + s * kLanes * kSub,
                                                       isum[S]);
                    prefetch.fetch();
                }
                if (S % 2 == 1 && s > 1 && s < kSubs + 2)
                    apply(isum[(S + 1) % 4], isum[(S + 2) % 4], slab, s / 2 - 1, products);
            });
            finish_super_block<Slab>(slab, terms, products, before, y.v[0]);
        }

        CHASKI_INLINE void apply(const TileSums& low, const TileSums& high, const uint8_t* slab, int pair,
                                 I32x16 (&products)[kTokens]) const {
            const I32x16 scales = load_pairs(slab + Slab::kScales, pair);
#pragma GCC unroll 16
            for (int n = 0; n < kTokens; ++n) {
                const I32x16 shifted = shift_pairs(scales, terms[n].shifts[pair]);
                products[n] = dot2(products[n], pairs(load_i32(low[n]), load_i32(high[n])), shifted);
            }
        }
    };
};

// Super-blocks with sub-blocks of 16 elements, which are too many for one tile C each. Codes times their
// scale, and values times their power of two, are cut into pieces (pieces.h), so that tiles C contain sums
// over a whole super-block. The kernel adds them up while it multiplies the next panel (product.h). Two
// pieces take four products, and three take three.
template <int kMinSub, int kPieces>
struct AmxPieces {
    using Slab = PiecesSlab<kMinSub, kPieces>;
    static constexpr bool kHasBoth = kPieces > kBoth;
    static constexpr int kStep = kSuperElements;
    static constexpr int kHalves = 2, kSums = 3;
    static constexpr int P = 1, N = kHalves * kTileRows;
    static constexpr int kSub = kStep / (kHalves * kChunks);
    static constexpr int kSmallest = N;
    static constexpr int kGroup = kGroupPanels, kFewPanels = 0;
    static constexpr int kAtOnce = 4;
    static constexpr int kSlab = Slab::kBytes;
    static Unpack unpack_of(const Unpacker& u) {
        return kHasBoth ? u.unpack_three_pieces : u.unpack_for_tiles;
    }

    // C with the sums of half of the tokens; C with those of the other half; A; B.
    static TileShapes shapes() {
        TileShapes shapes;
        shapes.set(0, 8, kTileRows, kChunk);
        return shapes;
    }

    struct Products {
        // The products of low pieces, of high ones, and of low with high ones or of both.
        alignas(64) TileSums of[kHalves][kSums];

        CHASKI_INLINE I32x16 sum(int token) const {
            const auto& sums = of[token / kTileRows];
            const int row = token % kTileRows;
            const I32x16 low = load_i32(sums[kLow][row]), high = load_i32(sums[kHigh][row]);
            I32x16 middle = load_i32(sums[kBoth][row]);
            if constexpr (kHasBoth) middle = subtract(subtract(middle, low), high);
            return join_pieces(low, middle, high);
        }
    };

    template <int kTokens>
    struct Tokens {
        SuperTerms terms[kTokens];
        alignas(64) int8_t values[kHalves][kChunks][kPieces][kTileRows][kChunk];
        int halves;

        explicit Tokens(const TileInput& in) : halves((in.size + kTileRows - 1) / kTileRows) {
            for (int n = 0; n < in.size; ++n) {
                const int64_t element = in.first_of(n);
                terms[n].template fill<16, kMinSub>(in.x, element, 0);
                const int16_t* shifts = in.x.supers[element / kSuperElements].shifts;
                for (int c = 0; c < kChunks; ++c) {
                    const Pieces pieces =
                        pieces_of_values(in.x.values + element + kChunk * c, shifts + 2 * c);
                    auto& chunk = values[n / kTileRows][c];
                    store_u8(chunk[kLow][n % kTileRows], pieces.low);
                    store_u8(chunk[kHigh][n % kTileRows], pieces.high);
                    if constexpr (kHasBoth) store_u8(chunk[kBoth][n % kTileRows], both_pieces(pieces));
                }
            }
            for (int n = in.size; n < (in.size + kAtOnce - 1) / kAtOnce * kAtOnce; ++n) terms[n] = {};
        }

        template <class Meanwhile>
        CHASKI_INLINE void multiply(const uint8_t* slab, int, Products& products,
                                    const Meanwhile& meanwhile) const {
            if constexpr (kHasBoth) return multiply_three(slab, products, meanwhile);
            unroll<kHalves>([&](auto half) __attribute__((always_inline)) {
                if (half.value < halves) multiply_half<half.value>(slab, products, meanwhile);
            });
            unroll<kHalves>([&](auto half) __attribute__((always_inline)) {
                if (half.value != halves - 1) return;
                unroll<kSums>([&](auto s) __attribute__((always_inline)) {
                    store_tile<kSums * half.value + s.value>(products.of[half][s]);
                });
            });
        }

        // Stores the sums of the previous half during these multiplications: a store waits for its tile, and
        // later stores wait for it.
        template <int kHalf, class Meanwhile>
        CHASKI_INLINE void multiply_half(const uint8_t* slab, Products& products,
                                         const Meanwhile& meanwhile) const {
            constexpr int C = kSums * kHalf, A = 6, B = 7, kBytes = kTileRows * kChunk;
            unroll<kSums>([](auto s) __attribute__((always_inline)) { clear_tile<C + s.value>(); });
            unroll<kChunks>([&](auto chunk) __attribute__((always_inline)) {
                const auto& own = values[kHalf][chunk];
                load_tile<B, kBytes>(slab + Slab::lines_of(chunk, kLow), 64);
                load_tile<A, kBytes>(own[kLow], kChunk);
                multiply_tiles<C + kLow, A, B>();
                load_tile<A, kBytes>(own[kHigh], kChunk);
                multiply_tiles<C + kBoth, A, B>();
                load_tile<B, kBytes>(slab + Slab::lines_of(chunk, kHigh), 64);
                multiply_tiles<C + kHigh, A, B>();
                load_tile<A, kBytes>(own[kLow], kChunk);
                multiply_tiles<C + kBoth, A, B>();
                if constexpr (kHalf > 0 && chunk.value < kSums) {
                    store_tile<C - kSums + chunk.value>(products.of[kHalf - 1][chunk]);
                }
                meanwhile();
            });
        }

        // Both halves pass each piece of the weights together.
        template <class Meanwhile>
        CHASKI_INLINE void multiply_three(const uint8_t* slab, Products& products,
                                          const Meanwhile& meanwhile) const {
            constexpr int A = 6, B = 7, kBytes = kTileRows * kChunk;
            unroll<kHalves * kSums>([](auto c) __attribute__((always_inline)) { clear_tile<c.value>(); });
            unroll<kChunks>([&](auto chunk) __attribute__((always_inline)) {
                unroll<kSums>([&](auto piece) __attribute__((always_inline)) {
                    load_tile<B, kBytes>(slab + Slab::lines_of(chunk, piece), 64);
                    unroll<kHalves>([&](auto half) __attribute__((always_inline)) {
                        if (half.value >= halves) return;
                        load_tile<A, kBytes>(values[half][chunk][piece], kChunk);
                        multiply_tiles<kSums * half.value + piece.value, A, B>();
                    });
                });
                for (int half = 0; half < halves; ++half) meanwhile();
            });
            unroll<kHalves * kSums>([&](auto c) __attribute__((always_inline)) {
                if (c.value / kSums < halves)
                    store_tile<c.value>(products.of[c.value / kSums][c.value % kSums]);
            });
        }

        template <class Before>
        CHASKI_INLINE void add(int first, const uint8_t* slab, int, const Products& products,
                               const Before& before, F32x16 (&y)[kAtOnce]) const {
            const F32x16 d = load_f32(reinterpret_cast<const float*>(slab + Slab::kD));
#pragma GCC unroll 16
            for (int n = 0; n < kAtOnce; ++n) {
                const SuperTerms& own = terms[first + n];
                const I32x16 sum = products.sum(first + n);
                if constexpr (kMinSub == 0) {
                    y[n] = add_scaled(before(n), sum, d, own.unit);
                } else {
                    const F32x16 dmin = load_f32(reinterpret_cast<const float*>(slab + Slab::kDMin));
                    y[n] = add_scaled(before(n), sum, d, sum_of_mins<Slab>(slab, own), dmin, own.unit);
                }
            }
        }
    };
};

}  // namespace chaski::CHASKI_ISA
