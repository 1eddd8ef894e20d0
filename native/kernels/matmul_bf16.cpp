// Matrices of BF16: products of pairs of bf16, by the rule in matmul.h. They use the processor's instruction,
// or the same roundings one after the other if the instruction is missing or slower.
//
// A line of a panel contains a pair of consecutive k for each of 16 rows, so it is multiplied without
// unpacking. Many tokens without the instruction use products of float32, with the second number of each pair
// before the first.
#include <utility>

#include "blocks.h"
#include "entry_points.h"
#include "finish.h"
#include "floats.h"
#include "tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// 1 if the compiler may use instructions for pairs of bf16.
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define CHASKI_HAS_PAIRS 1
#else
#define CHASKI_HAS_PAIRS 0
#endif

namespace chaski::CHASKI_ISA {

// A count of numbers, rounded up to whole lines of memory.
constexpr int64_t whole_lines(int64_t count) { return (count + 31) / 32 * 32; }

// While it lives, this thread reads and writes zeros instead of subnormal numbers.
class NoSubnormals {
   public:
#if defined(__x86_64__)
    NoSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
    ~NoSubnormals() { _mm_setcsr(before_); }

   private:
    const unsigned before_;
#elif defined(__aarch64__)
    NoSubnormals() {
        asm volatile("mrs %0, fpcr" : "=r"(before_));
        asm volatile("msr fpcr, %0" ::"r"(before_ | 1ull << 24));
    }
    ~NoSubnormals() { asm volatile("msr fpcr, %0" ::"r"(before_)); }

   private:
    unsigned long long before_;
#endif
};

// Rounds to nearest, ties to even; subnormal numbers become zeros, and a NaN remains a NaN.
CHASKI_INLINE uint16_t to_bf16(float x) {
    const auto u = __builtin_bit_cast(uint32_t, x);
    const uint32_t magnitude = u & 0x7fffffffu;
    const uint32_t nearest = (u + 0x7fff + (u >> 16 & 1)) >> 16, quiet = u >> 16 | 0x40, zero = u >> 31 << 15;
    return static_cast<uint16_t>(magnitude > 0x7f800000u ? quiet : magnitude < 0x00800000u ? zero : nearest);
}

#if defined(__AVX512BF16__)

// Pair number j of 16 rows.
using Weights = __m512bh;
CHASKI_INLINE Weights weights_of(const uint8_t* lines, int64_t j) {
    return reinterpret_cast<Weights>(_mm512_loadu_si512(lines + 64 * j));
}

// Pair number j of a token, in all lanes.
using Rounded = uint16_t;
using Pair = __m512bh;
CHASKI_INLINE Pair pair_of(const Rounded* x, int64_t j) {
    return reinterpret_cast<Pair>(_mm512_set1_epi32(read<int32_t>(x + 2 * j)));
}
CHASKI_INLINE F32x16 dot2(F32x16 acc, Weights w, Pair x) { return {_mm512_dpbf16_ps(acc.v, w, x)}; }

CHASKI_INLINE Rounded rounded(float x) { return to_bf16(x); }
CHASKI_INLINE void round_32(const float* x, Rounded* out) {
    const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x));
    _mm512_storeu_si512(out, reinterpret_cast<__m512i>(both));
}

#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)

struct Weights {
    bfloat16x8_t v[4];
};
CHASKI_INLINE Weights weights_of(const uint8_t* lines, int64_t j) {
    Weights w;
    for (int i = 0; i < 4; ++i) w.v[i] = vreinterpretq_bf16_u8(vld1q_u8(lines + 64 * j + 16 * i));
    return w;
}

using Rounded = uint16_t;
using Pair = bfloat16x4_t;
CHASKI_INLINE Pair pair_of(const Rounded* x, int64_t j) {
    return vreinterpret_bf16_u32(uint32x2_t{read<uint32_t>(x + 2 * j), 0});
}
// Each product is rounded once, unlike with instructions that add both products of a pair.
CHASKI_INLINE F32x16 dot2(F32x16 acc, const Weights& w, Pair x) {
    for (int i = 0; i < 4; ++i) {
        acc.v[i] = vbfmlalbq_lane_f32(vbfmlaltq_lane_f32(acc.v[i], w.v[i], x, 1), w.v[i], x, 0);
    }
    return acc;
}

CHASKI_INLINE Rounded rounded(float x) { return to_bf16(x); }
CHASKI_INLINE void round_32(const float* x, Rounded* out) {
    for (int i = 0; i < 32; ++i) out[i] = to_bf16(x[i]);
}

#else

struct Weights {
    F32x16 first, second;
};
CHASKI_INLINE Weights weights_of(const uint8_t* lines, int64_t j) {
    return {BF16Weights::load(lines, 2 * j), BF16Weights::load(lines, 2 * j + 1)};
}

using Rounded = float;
struct Pair {
    F32x16 first, second;
};
CHASKI_INLINE Pair pair_of(const Rounded* x, int64_t j) { return {splat(x[2 * j]), splat(x[2 * j + 1])}; }
CHASKI_INLINE F32x16 dot2(F32x16 acc, Weights w, Pair x) {
    return fma(w.first, x.first, fma(w.second, x.second, acc));
}

CHASKI_INLINE Rounded rounded(float x) {
    return __builtin_bit_cast(float, static_cast<uint32_t>(to_bf16(x)) << 16);
}
CHASKI_INLINE void round_32(const float* x, Rounded* out) {
    for (int i = 0; i < 32; ++i) out[i] = rounded(x[i]);
}

#endif

// `count` numbers, and a zero after an odd one.
CHASKI_INLINE void round_row(const float* x, int64_t count, Rounded* out) {
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) round_32(x + i, out + i);
    for (; i < count; ++i) out[i] = rounded(x[i]);
    if (count % 2 != 0) out[count] = 0;
}

// Multiplies P panels by N tokens, from number `first` of the batch on, whose rounded values are given. If
// `distance` is not 0, prefetches the data at this distance in bytes.
template <int P, int N>
static void multiply_panels(const Matrix& w, int64_t panel, const Rounded* values, const Output& out,
                            int64_t first, int64_t distance) {
    const int64_t bytes = panel_bytes(w.type, w.k);
    const uint8_t* lines = w.panels + panel * bytes;
    const int64_t pairs = (w.k + 1) / 2;
    F32x16 y[P][N];
    unroll<P * N>([&](auto i) __attribute__((always_inline)) { y[i / N][i % N] = splat(0.0f); });
    for (int64_t j = 0; j < pairs; ++j) {
        Weights weights[P];
        unroll<P>([&](auto p) __attribute__((always_inline)) {
            const uint8_t* own = lines + p * bytes;
            if (distance != 0) __builtin_prefetch(own + distance + 64 * j, 0, 2);
            weights[p] = weights_of(own, j);
        });
        unroll<N>([&](auto n) __attribute__((always_inline)) {
            const Pair x = pair_of(values + n * 2 * pairs, j);
            unroll<P>([&](auto p) __attribute__((always_inline)) { y[p][n] = dot2(y[p][n], weights[p], x); });
        });
    }
    unroll<P * N>([&](auto i) __attribute__((always_inline)) {  // a constant index keeps sums in registers
        const int64_t of = panel + i / N;
        finish(y[i / N][i % N], out, first + i % N, kLanes * of, rows_in_panel(w, of));
    });
}

#if !CHASKI_HAS_PAIRS

// The pairs of a panel as floats, the second number of each pair first.
static void widen_pairs(const uint8_t* panel, int64_t elements, uint8_t* slab) {
    auto* lines = reinterpret_cast<float*>(slab);
    for (int64_t j = 0; j < elements / 2; ++j) {
        const Weights pair = weights_of(panel, j);
        store_f32(lines + 2 * kLanes * j, pair.second);
        store_f32(lines + 2 * kLanes * j + kLanes, pair.first);
    }
}

struct FloatPairs : Floats {
    static Unpack unpack_of(const Unpacker&) { return widen_pairs; }
};

#endif

// Multiplies P panels by all tokens, whose rounded values are given. The panels stay in the second-level
// cache while tokens pass, and the last tokens prefetch the next panels.
template <int P>
static void multiply_tokens(const Matrix& w, int64_t panel, const Rounded* values, int64_t n,
                            const Output& out) {
    const int64_t width = (w.k + 1) / 2 * 2, bytes = P * panel_bytes(w.type, w.k);
    for_parts<kPairTile>(n, [&](int64_t first, auto size) {
        const bool fetches = n > kAloneTokens && first + size == n;
        multiply_panels<P, size.value>(w, panel, values + first * width, out, first, fetches ? bytes : 0);
    });
}

static void multiply_pairs(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Rounded* values,
                           int64_t n, const Output& out) {
    int64_t panel = panel_begin;
    for (; panel + kPairPanels <= panel_end; panel += kPairPanels) {
        multiply_tokens<kPairPanels>(w, panel, values, n, out);
    }
    if constexpr (kPairPanels > 1) {
        for (; panel < panel_end; ++panel) multiply_tokens<1>(w, panel, values, n, out);
    }
}

void matmul_bf16(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x, int64_t n,
                 const Output& out, void* scratch) {
    const NoSubnormals scope;
    const int64_t width = (w.k + 1) / 2 * 2;
    auto* values = static_cast<Rounded*>(scratch);
    for (int64_t block = 0; block < n; block += kTokenBlock) {
        const int64_t count = n - block < kTokenBlock ? n - block : kTokenBlock, at = block * out.y_stride;
        const Output part{out.y + at, out.y_stride, out.bias, out.residual ? out.residual + at : nullptr};
        for (int64_t i = 0; i < count; ++i) {
            round_row(x.floats + (block + i) * w.k, w.k, values + i * width);
        }
#if !CHASKI_HAS_PAIRS
        if (count > kFloatStreamTokens) {
            for (int64_t i = 0; i < count * width; i += 2) std::swap(values[i], values[i + 1]);
            const Matrix even{w.type, w.rows, width, w.panels};
            const Activations pairs{nullptr, nullptr, nullptr, values};
            run_product<FloatPairs>(unpacker_of(w.type), even, panel_begin, panel_end, pairs, count, part,
                                    values + whole_lines(count * width));
            continue;
        }
#endif
        multiply_pairs(w, panel_begin, panel_end, values, count, part);
    }
}

int64_t scratch_bytes_bf16(int64_t k, int64_t n) {
    const int64_t tokens = n < kTokenBlock ? n : kTokenBlock;
    const int64_t rounded = whole_lines(tokens * (k + 1)) * static_cast<int64_t>(sizeof(Rounded));
    return CHASKI_HAS_PAIRS ? rounded : rounded + product_scratch_bytes<Floats>(tokens);
}

#if CHASKI_HAS_PAIRS
bool follows_the_rule();

// True if this processor rounds by the rule for pseudo-random numbers from 2^-8 to 2^8, and for products that
// are too small to be normal numbers.
bool follows_the_rule() {
    const NoSubnormals scope;
    uint32_t state = 1;
    const auto next = [&](uint32_t smallest_exponent) {
        state = state * 1664525u + 1013904223u;
        return state >> 31 << 31 | (smallest_exponent + (state >> 27 & 15)) << 23 | (state >> 4 & 0x7fffff);
    };
    const auto upper = [](uint32_t bits) { return __builtin_bit_cast(float, bits & 0xffff0000u); };
    for (int i = 0; i < 512; ++i) {
        const uint32_t exponent = i % 16 == 0 ? 64 : 119;
        const uint32_t first = next(exponent), second = next(exponent), x = next(exponent),
                       z = next(exponent);
        const auto acc = __builtin_bit_cast(float, next(i % 16 == 0 ? 1 : 119));
        uint32_t lines[kLanes];
        for (uint32_t& line : lines) line = (second & 0xffff0000u) | first >> 16;
        const Rounded pair[2] = {static_cast<Rounded>(x >> 16), static_cast<Rounded>(z >> 16)};
        float y[kLanes];
        store_f32(y,
                  dot2(splat(acc), weights_of(reinterpret_cast<const uint8_t*>(lines), 0), pair_of(pair, 0)));
        const F32x16 step = fma(splat(upper(second)), splat(upper(z)), splat(acc));
        float expected[kLanes];
        store_f32(expected, fma(splat(upper(first)), splat(upper(x)), step));
        if (__builtin_memcmp(y, expected, sizeof y) != 0) return false;
    }
    return true;
}
#endif

}  // namespace chaski::CHASKI_ISA
