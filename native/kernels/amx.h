// Many tokens on processors with tile registers (AMX-INT8): the products of 16 tokens and 16 rows over a
// sub-block are one instruction, which adds int8 times int8 exactly, so the results are the same bits as
// everywhere. What limits it is the scaling of its sums, so formats with sums of 16 elements gain nothing and
// keep the vector kernels.
//
//   tile A   16 tokens, one a row: the int8 values of a sub-block     (copied together first, a step of k at
//   a time) tile B   the lines of a sub-block of the slab, with signed codes: 4 of k a row, 16 matrix rows
//   across tile C   the int32 sums: a row for each token, lanes are matrix rows as in every other kernel
#pragma once

#include "coefficients.h"
#include "product.h"
#include "super_blocks.h"

namespace chaski::CHASKI_ISA {

constexpr int kTileRows = 16;
constexpr int kAmxTokens = 32;  // with fewer, the vector kernels are faster

// Shapes of the tile registers: four C, to have several products under way; two A; two B.
struct alignas(64) TileShapes {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    explicit TileShapes(int sub) {
        for (int tile = 0; tile < 8; ++tile) {
            row_bytes[tile] = static_cast<uint16_t>(tile == 4 || tile == 5 ? sub : 64);
            rows[tile] = static_cast<uint8_t>(tile < 6 ? kTileRows : sub / 4);
        }
    }
};

using TileSums = int32_t[kTileRows][kLanes];

// A tile register from `kBytes` at p, its rows `stride` apart. Memory is named as an operand, not as a
// clobber, so that the compiler keeps its own vectors in registers.
template <int kTile, int kBytes>
CHASKI_INLINE void load_tile(const void* p, int64_t stride) {
    using Bytes = const char[kBytes];
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(kTile),
                 "m"(*static_cast<Bytes*>(p)));
}

// sums = A (16 rows of kSub, `stride` apart) times B (lines of kSub elements), by the registers of sub-block
// S.
template <int S, int kSub, int kStride>
CHASKI_INLINE void multiply_tiles(const int8_t* a, const uint8_t* b, TileSums& sums) {
    constexpr int C = S % 4, A = 4 + S % 2, B = 6 + S % 2;
    load_tile<A, (kTileRows - 1) * kStride + kSub>(a, kStride);
    load_tile<B, kLanes * kSub>(b, 64);
    asm volatile("tilezero %%tmm%c0\n\ttdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
    asm volatile("tilestored %%tmm%c3, (%1,%2,1)" : "=m"(sums) : "r"(&sums), "r"(int64_t{64}), "i"(C));
}

// The int8 values of a tile's tokens for `kStep` elements, together.
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

// step<S>(s) for s = 0, 1, ... below `count`, with S = s % 4: the registers to use.
template <class F>
CHASKI_INLINE void for_each_by_four(int count, const F& step) {
    for (int s = 0; s < count; s += 4) {
        unroll<4>([&](auto i) __attribute__((always_inline)) { step(i, s + i); });
    }
}

template <bool kHasMins>
struct AmxQuantized {
    static constexpr int kStep = 512;
    static constexpr int kSub = 32;
    static constexpr int P = 1, N = kTileRows;
    static constexpr int kSmallest = N;  // smaller tiles leave rows of the tile registers unused
    static constexpr int kGroup = 8;
    static Unpack unpack_of(const Unpacker& u) { return u.unpack_centred; }
    static constexpr int kBytes = kBlockBytes<kHasMins>;
    static constexpr int kSlab = kStep / kSub * kBytes;
    static constexpr int kLag = 2;  // reading a tile back at once would wait for it

    template <int kTokens>
    struct Tokens {
        Coefficients<kHasMins, kStep / kSub, kTokens, false> c;
        TileValues<kStep> values;

        Tokens(const Unpacker&, const Activations& x, int64_t k, int64_t token, int size, int64_t at,
               int elements)
            : values(x, k, token, size, at, elements) {
            c.fill(x, k, token, size, at, elements / kSub, 0);
        }

        // Multiplies block s, and applies the sums of an earlier one.
        template <class Before>
        CHASKI_INLINE void add(const uint8_t* slab, int elements, const Before& before, Sums<1, kTokens>& y,
                               Prefetch<1>& prefetch) const {
            y.take(before);
            alignas(64) TileSums isum[4];
            const int blocks = elements / kSub;
            for_each_by_four(blocks + kLag, [&](auto i, int s) __attribute__((always_inline)) {
                constexpr int S = i.value;
                if (s < blocks) {
                    multiply_tiles<S, kSub, kStep>(values.of[0] + s * kSub, slab + s * kBytes, isum[S]);
                    prefetch.fetch();
                }
                const int earlier = s - kLag;
                if (earlier >= 0 && earlier < blocks)
                    apply(isum[(S + 4 - kLag) % 4], slab + earlier * kBytes, earlier, y);
            });
        }

        CHASKI_INLINE void apply(const TileSums& isum, const uint8_t* slab, int s,
                                 Sums<1, kTokens>& y) const {
            const auto* scales = reinterpret_cast<const float*>(slab + kLanes * kSub);
            const F32x16 scale = load_f32(scales);
#pragma GCC unroll 16
            for (int n = 0; n < kTokens; ++n) {
                y.v[0][n] = fma(to_f32(load_i32(isum[n])), scale * splat(c.scale[n][s]), y.v[0][n]);
            }
            if constexpr (kHasMins) {
                const F32x16 min = load_f32(scales + kLanes);
#pragma GCC unroll 16
                for (int n = 0; n < kTokens; ++n) y.v[0][n] = fma(min, splat(c.sum[n][s]), y.v[0][n]);
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
    static constexpr int kGroup = 8;
    static Unpack unpack_of(const Unpacker& u) { return u.unpack_centred; }
    static constexpr int kSlab = Slab::kBytes;
    static constexpr int kSubs = kStep / kSub;

    template <int kTokens>
    struct Tokens {
        SuperTerms terms[kTokens];
        TileValues<kStep> values;

        Tokens(const Unpacker&, const Activations& x, int64_t k, int64_t token, int size, int64_t at,
               int elements)
            : values(x, k, token, size, at, elements) {
            for (int n = 0; n < size; ++n) terms[n].template fill<kSub, kSub>(x, (token + n) * k + at, 0);
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
                    multiply_tiles<S, kSub, kStep>(values.of[0] + s * kSub, slab + s * kLanes * kSub,
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

}  // namespace chaski::CHASKI_ISA
