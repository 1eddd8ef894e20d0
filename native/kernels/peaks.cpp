// The loops of peaks.h: a register tile of P vectors of weights by N activations, as in the products, on
// operands that stay in the first-level cache:
//
//   for each step     load P vectors         w0  w1              (32 different ones in turn, so that the
//                     P x N multiply-adds    w0*x0 w1*x0 ...      compiler cannot hoist repeated work)
//
// Several steps are unrolled, because sums would otherwise be copied between registers after each step.
#include "peaks.h"

#include "cpu_features.h"
#include "simd.h"
#include "tiles.h"

namespace chaski::CHASKI_ISA {

constexpr int kPlaces = 32;  // different vectors of weights: 2 KB

struct alignas(64) Operands {
    uint8_t weights[kPlaces][64];
    float activations[16];
    int32_t bytes[16];

    Operands() {
        for (int i = 0; i < kPlaces; ++i) {
            // 0x3f81 as bf16, and as the upper half of a float, is about 1.
            for (int b = 0; b < 64; ++b) weights[i][b] = b % 2 ? 0x3f : static_cast<uint8_t>(0x80 + i);
        }
        for (int n = 0; n < 16; ++n) {
            activations[n] = 1e-6f * static_cast<float>(n);
            bytes[n] = 0x01020304 * (n % 4);
        }
        // The compiler must assume that any value may be stored here.
        asm volatile("" : : "r"(this) : "memory");
    }

    const uint8_t* at(int64_t step) const { return weights[step % kPlaces]; }
};

// Results must be stored, or the compiler would remove the loop.
template <class Vector>
static void keep(const Vector* sums, int count) {
    asm volatile("" : : "r"(sums), "r"(count) : "memory");
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
// Pairs of rows by pairs of tokens.
static int64_t peak_int8(int64_t steps) {
    constexpr int P = 4, N = 3;
    const Operands operands;
    int32x4_t sums[P * N];
    for (int32x4_t& sum : sums) sum = vdupq_n_s32(0);
    for (int64_t step = 0; step < steps; ++step) {
        const U8x64 w = load_u8(operands.at(step));
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) {
            const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(operands.bytes[n]));
#pragma GCC unroll 16
            for (int p = 0; p < P; ++p) {
                sums[P * n + p] = vmmlaq_s32(sums[P * n + p], vreinterpretq_s8_u8(w.v[p]), x);
            }
        }
    }
    keep(sums, P * N);
    return int64_t{32} * P * N;
}
#else
static int64_t peak_int8(int64_t steps) {
    constexpr int P = kTilePanels, N = kTileTokens;
    const Operands operands;
    I32x16 sums[P * N];
    for (I32x16& sum : sums) sum = splat(0);
#pragma GCC unroll 8
    for (int64_t step = 0; step < steps; ++step) {
        U8x64 w[P];
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) w[p] = load_u8(operands.at(P * step + p));
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) {
#pragma GCC unroll 16
            for (int p = 0; p < P; ++p) {
                sums[P * n + p] = dot4<127>(sums[P * n + p], w[p], operands.bytes[n]);
            }
        }
    }
    keep(sums, P * N);
    return int64_t{64} * P * N;
}
#endif

// With 32 registers, the sums and all operands stay in registers.
[[maybe_unused]] constexpr int kPeakPanels = 2, kPeakTokens = 8;

static int64_t peak_fp32(int64_t steps) {
    constexpr int P = kFloatPanels > 1 ? kPeakPanels : 1, N = kFloatPanels > 1 ? kPeakTokens : kFloatTokens;
    const Operands operands;
    F32x16 sums[P * N];
    for (F32x16& sum : sums) sum = splat(0.0f);
#pragma GCC unroll 8
    for (int64_t step = 0; step < steps; ++step) {
        F32x16 w[P];
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) {
            w[p] = load_f32(reinterpret_cast<const float*>(operands.at(P * step + p)));
        }
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) {
            const F32x16 x = splat(operands.activations[n]);
#pragma GCC unroll 16
            for (int p = 0; p < P; ++p) sums[P * n + p] = fma(w[p], x, sums[P * n + p]);
        }
    }
    keep(sums, P * N);
    return int64_t{16} * P * N;
}

// Pairs of products of half-wide floats, which newer processors with AVX-512 have.
#if defined(__AVX512VNNI__)
CHASKI_FOR_BF16 static int64_t peak_bf16(int64_t steps) {
    constexpr int P = kPeakPanels, N = kPeakTokens;
    const Operands operands;
    __m512 sums[P * N];
    for (__m512& sum : sums) sum = _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int64_t step = 0; step < steps; ++step) {
        __m512bh w[P];
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) w[p] = (__m512bh)_mm512_load_si512(operands.at(P * step + p));
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) {
            const auto x = (__m512bh)_mm512_set1_epi32(operands.bytes[n]);
#pragma GCC unroll 16
            for (int p = 0; p < P; ++p) sums[P * n + p] = _mm512_dpbf16_ps(sums[P * n + p], w[p], x);
        }
    }
    keep(sums, P * N);
    return int64_t{32} * P * N;
}

static Peaks::Loop bf16_loop() { return cpu_features().bf16 ? peak_bf16 : nullptr; }
#else
static Peaks::Loop bf16_loop() { return nullptr; }
#endif

// Two streams, prefetched a page ahead: the processor's own prefetchers stop at the end of a 4 KB page.
static uint8_t read_memory(const std::byte* data, int64_t bytes) {
    constexpr int64_t kStreams = 2, kPiece = 512, kPrefetchDistance = 4096;
    const int64_t stream = bytes / kStreams;
    U8x64 seen[4] = {load_u8(data), load_u8(data), load_u8(data), load_u8(data)};
    for (int64_t at = 0; at < stream; at += kPiece) {
        for (int s = 0; s < kStreams; ++s) {
            const std::byte* piece = data + s * stream + at;
#pragma GCC unroll 16
            for (int i = 0; i < kPiece / 64; ++i) {
                __builtin_prefetch(piece + kPrefetchDistance + 64 * i);
                seen[i % 4] = seen[i % 4] | load_u8(piece + 64 * i);
            }
        }
    }
    uint8_t lanes[64], all = 0;
    store_u8(lanes, (seen[0] | seen[1]) | (seen[2] | seen[3]));
    for (uint8_t lane : lanes) all |= lane;
    return all;
}

Peaks peaks();
Peaks peaks() { return {.int8 = peak_int8, .bf16 = bf16_loop(), .fp32 = peak_fp32, .read = read_memory}; }

}  // namespace chaski::CHASKI_ISA
