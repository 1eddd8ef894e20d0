// Many tokens on processors with tile registers (AMX-INT8): the products of 16 tokens and 16 rows over a
// sub-block are one instruction, which adds int8 times int8 exactly, so the results are the same bits as
// everywhere. What limits it is the scaling of its sums, so formats with a scale for every 16 elements gain
// nothing and keep the vector kernels.
//
//   tile A   16 tokens, one a row: the int8 values of a sub-block     (copied together first, a step of k at
//   a time) tile B   the lines of a sub-block of the slab, with signed codes: 4 of k a row, 16 matrix rows
//   across tile C   the int32 sums: a row for each token, lanes are matrix rows as in every other kernel
#pragma once

#include "coefficients.h"
#include "product.h"

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

template <bool kHasMins>
struct AmxQuantized {
    static constexpr int kStep = 512;
    static constexpr int kSub = 32;
    static constexpr int P = 1, N = kTileRows;
    template <int>
    static constexpr int kSmaller = 0;
    static constexpr int kGroup = 8;
    static Unpack unpack_of(const Unpacker& u) { return u.unpack_centred; }
    static constexpr int kBytes = kSubBytes<kSub, kHasMins>;
    static constexpr int kSlab = kStep / kSub * kBytes;
    static constexpr int kLag = 2;

    template <int kTokens>
    struct Tokens {
        Coefficients<kSub, kHasMins, kStep / kSub, kTokens, false> c;
        alignas(64) int8_t values[kTileRows][kStep];

        Tokens(const Unpacker&, const Activations& x, int64_t k, int64_t token, int size, int64_t at,
               int elements) {
            for (int n = 0; n < size; ++n) {
                const int8_t* from = x.values + (token + n) * k + at;
                for (int e = 0; e < elements; e += kSub) __builtin_memcpy(values[n] + e, from + e, kSub);
            }
            c.fill(x, k, token, size, at, elements / kSub, 0);
        }

        CHASKI_INLINE void add(const uint8_t* slab, int elements, Sums<1, kTokens>& y,
                               Ahead<1>& ahead) const {
            alignas(64) TileSums isum[4];
            const int subs = elements / kSub;
            for (int s = 0; s < subs + kLag; s += 4) {
                stage<0>(slab, s, subs, isum, y, ahead);
                stage<1>(slab, s + 1, subs, isum, y, ahead);
                stage<2>(slab, s + 2, subs, isum, y, ahead);
                stage<3>(slab, s + 3, subs, isum, y, ahead);
            }
        }

        // Multiplies sub-block s, and applies the sums of an earlier one: reading a tile back at once would
        // wait for it.
        template <int S>
        CHASKI_INLINE void stage(const uint8_t* slab, int s, int subs, TileSums (&isum)[4],
                                 Sums<1, kTokens>& y, Ahead<1>& ahead) const {
            if (s < subs) {
                multiply_tiles<S, kSub, kStep>(values[0] + s * kSub, slab + s * kBytes, isum[S]);
                ahead.fetch();
            }
            const int before = s - kLag;
            if (before >= 0 && before < subs)
                apply(isum[(S + 4 - kLag) % 4], slab + before * kBytes, before, y);
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

}  // namespace chaski::CHASKI_ISA
