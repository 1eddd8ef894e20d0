// More than kI8mmStreamTokens tokens on ARM processors with matrix products of int8 (FEAT_I8MM). One
// instruction, `smmla`, adds the products of two rows and two tokens over eight elements of k to four int32.
// It is exact, so the results have the same bits as everywhere:
//
//   |row a, 8 of k|row b, 8 of k|  times  |token 0, 8 of k|token 1, 8 of k|   ->   |a0|a1|b0|b1|
//
// Half a panel has four pairs of rows (i8mm_slab.h). Its integer sums and its float sums, with three pairs of
// tokens, stay in registers.
#include "coefficients.h"
#include "entry_points.h"
#include "i8mm_slab.h"
#include "product.h"
#include "super_blocks.h"

namespace chaski::neon {
// The kernels of processors without these products, which serve fewer tokens here.
void matmul_quantized(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x,
                      int64_t n, const Output& out, void* scratch, const Variant& variant);
int64_t scratch_bytes_quantized(int64_t k, int64_t n);
}  // namespace chaski::neon

namespace chaski::CHASKI_ISA {

constexpr int kMostTokens = 6;

// Sums of half a panel and T pairs of tokens.
template <int T>
struct FloatSums {
    float32x4_t v[kRowPairs][T];
};
template <int T>
struct IntegerSums {
    int32x4_t v[kRowPairs][T];
};

// Calls f(row pair, pair of tokens) for each register of sums.
template <int T, class F>
CHASKI_INLINE void for_sums(const F& f) {
    unroll<kRowPairs * T>(
        [&](auto i) __attribute__((always_inline)) { f(Index<i.value / T>{}, Index<i.value % T>{}); });
}

// Half H of the previous sums, by token number. An odd number of tokens is followed by an unused one.
template <int H, int N, int T = (N + 1) / 2, class Before>
CHASKI_INLINE FloatSums<T> take(const Before& before) {
    FloatSums<T> y;
    unroll<2 * T>([&](auto i) __attribute__((always_inline)) {
        constexpr int t = i.value / 2, q = i.value % 2;
        const float32x4_t even = before(2 * t).v[2 * H + q];
        const float32x4_t odd = 2 * t + 1 < N ? before(2 * t + 1).v[2 * H + q] : vdupq_n_f32(0);
        y.v[2 * q][t] = vzip1q_f32(even, odd);
        y.v[2 * q + 1][t] = vzip2q_f32(even, odd);
    });
    return y;
}
template <int H, int N, int T = (N + 1) / 2>
CHASKI_INLINE void give(const FloatSums<T>& sums, Sums<1, N>& y) {
    unroll<2 * T>([&](auto i) __attribute__((always_inline)) {
        constexpr int t = i.value / 2, q = i.value % 2;
        y.v[0][2 * t].v[2 * H + q] = vuzp1q_f32(sums.v[2 * q][t], sums.v[2 * q + 1][t]);
        if constexpr (2 * t + 1 < N) {
            y.v[0][2 * t + 1].v[2 * H + q] = vuzp2q_f32(sums.v[2 * q][t], sums.v[2 * q + 1][t]);
        }
    });
}

// The bytes of pairs of tokens: |token 0, 8 of k|token 1, 8 of k|.
template <int kEights, int T>
struct TokenEights {
    alignas(16) int8_t v[kEights][T][2][8];

    CHASKI_INLINE void set(int n, const int8_t* values, int eights) {
        for (int i = 0; i < eights; ++i) __builtin_memcpy(v[i][n / 2][n % 2], values + 8 * i, 8);
    }
    CHASKI_INLINE int8x16_t get(int i, int t) const { return vld1q_s8(v[i][t][0]); }
};

// A number for each of two tokens, twice: |token 0|token 1|token 0|token 1|.
template <int kCount, int T>
struct TokenFloats {
    alignas(16) float v[kCount][T][4];

    CHASKI_INLINE void set(int i, int n, float value) { v[i][n / 2][n % 2] = v[i][n / 2][n % 2 + 2] = value; }
    CHASKI_INLINE float32x4_t get(int i, int t) const { return vld1q_f32(v[i][t]); }
};

CHASKI_INLINE float32x4_t floats_at(const uint8_t* slab, int row_pair) {
    return vld1q_f32(reinterpret_cast<const float*>(slab) + 4 * row_pair);
}

// The products of kEights times eight elements, from number `first` of the step on.
template <int kEights, int kStepEights, int T>
CHASKI_INLINE IntegerSums<T> multiply(const uint8_t* codes, const TokenEights<kStepEights, T>& values,
                                      int first) {
    IntegerSums<T> sums;
    for_sums<T>([&](auto r, auto t) __attribute__((always_inline)) { sums.v[r][t] = vdupq_n_s32(0); });
    unroll<kEights>([&](auto i) __attribute__((always_inline)) {
        int8x16_t w[kRowPairs], x[T];
        unroll<kRowPairs>([&](auto r) __attribute__((always_inline)) {
            w[r] = vld1q_s8(reinterpret_cast<const int8_t*>(codes + i * kEight + 16 * r));
        });
        unroll<T>([&](auto t) __attribute__((always_inline)) { x[t] = values.get(first + i, t); });
        for_sums<T>([&](auto r, auto t) __attribute__((always_inline)) {
            sums.v[r][t] = vmmlaq_s32(sums.v[r][t], w[r], x[t]);
        });
    });
    return sums;
}

template <bool kMins, int kSubElements = 32>
struct I8mmQuantized {
    using Slab = BlockSlab<kMins, kSubElements>;
    static constexpr int kStep = Slab::kStep;
    static constexpr int kSub = 16;  // between two prefetches: a block of a half
    static constexpr int P = 1, N = kMostTokens;
    static constexpr int kSmallest = smallest_tile(N, kI8mmStreamTokens + 1);
    static constexpr int kGroup = kGroupPanels, kFewPanels = P;
    static constexpr int kSlab = kHalves * Slab::kHalf;
    static Unpack unpack_of(const Unpacker& u) { return u.unpack; }

    template <int kTokens>
    struct Tokens {
        static constexpr int T = (kTokens + 1) / 2, kBlocks = kStep / 32;
        TokenEights<kStep / 8, T> values{};
        TokenFloats<kBlocks, T> scales{}, sums{};

        explicit Tokens(const TileInput& in) {
            Coefficients<kMins, kBlocks, kTokens, false> c;
            c.fill(in.x, in.k, in.token, kTokens, in.at, in.elements / 32, 0);
            for (int n = 0; n < kTokens; ++n) {
                values.set(n, in.x.values + in.first_of(n), in.elements / 8);
                for (int b = 0; b < in.elements / 32; ++b) {
                    scales.set(b, n, c.scale[n][b]);
                    if constexpr (kMins) sums.set(b, n, c.sum[n][b]);
                }
            }
        }

        template <class Before>
        CHASKI_INLINE void add(const uint8_t* slab, int elements, const Before& before, Sums<1, kTokens>& y,
                               Prefetch<1>& prefetch) const {
            unroll<kHalves>([&](auto h) __attribute__((always_inline)) {
                FloatSums<T> own = take<h.value, kTokens>(before);
                for (int b = 0; b < elements / 32; ++b) {
                    prefetch.fetch();
                    add_block(slab + h * Slab::kHalf + b * Slab::kBlock, b, own);
                }
                give<h.value, kTokens>(own, y);
            });
        }

        CHASKI_INLINE void add_block(const uint8_t* slab, int b, FloatSums<T>& y) const {
            const uint8_t *row_scales = slab + Slab::kCodes, *row_mins = row_scales + kFloats;
            unroll<32 / kSubElements>([&](auto s) __attribute__((always_inline)) {
                constexpr int kEights = kSubElements / 8;
                const IntegerSums<T> isum =
                    multiply<kEights>(slab + s * kEights * kEight, values, 4 * b + s * kEights);
                for_sums<T>([&](auto r, auto t) __attribute__((always_inline)) {
                    const float32x4_t scale =
                        vmulq_f32(floats_at(row_scales + s * kFloats, r), scales.get(b, t));
                    y.v[r][t] = vfmaq_f32(y.v[r][t], vcvtq_f32_s32(isum.v[r][t]), scale);
                });
            });
            if constexpr (kMins) {
                for_sums<T>([&](auto r, auto t) __attribute__((always_inline)) {
                    y.v[r][t] = vfmaq_f32(y.v[r][t], floats_at(row_mins, r), sums.get(b, t));
                });
            }
        }
    };
};

template <int kSubElements, int kMinSub>
struct I8mmSuperQuantized {
    using Slab = SuperBlockSlab<kSubElements, kMinSub>;
    static constexpr int kStep = kSuperElements;
    static constexpr int kSub = 16;  // between two prefetches: 32 elements of a half
    static constexpr int P = 1, N = kMostTokens;
    static constexpr int kSmallest = smallest_tile(N, kI8mmStreamTokens + 1);
    static constexpr int kGroup = kGroupPanels, kFewPanels = P;
    static constexpr int kSlab = kHalves * Slab::kHalf;
    static Unpack unpack_of(const Unpacker& u) { return u.unpack; }

    template <int kTokens>
    struct Tokens {
        static constexpr int T = (kTokens + 1) / 2, kShifts = kSuperElements / 32;
        TokenEights<kStep / 8, T> values{};
        alignas(16) int16_t shifts[kShifts][T][8] = {};
        // Bytes of the sums that multiply the mins, by 256 and by 1. The latter are unsigned.
        TokenEights<Slab::kMinEights, T> high_sums{}, low_sums{};
        TokenFloats<1, T> units{};

        explicit Tokens(const TileInput& in) {
            for (int n = 0; n < kTokens; ++n) {
                const int64_t element = in.first_of(n);
                values.set(n, in.x.values + element, kStep / 8);
                const int16_t* own = in.x.supers[element / kSuperElements].shifts;
                for (int b = 0; b < kShifts; ++b) {
                    for (int i = n % 2; i < 8; i += 2) shifts[b][n / 2][i] = own[b];
                }
                SuperTerms terms;
                terms.fill<kSubElements, kMinSub>(in.x, element, 0);
                units.set(0, n, terms.unit);
                set_sums(n, terms.sums);
            }
        }

        // In the order of `join`.
        CHASKI_INLINE void set_sums(int n, const int32_t* pairs) {
            constexpr uint32_t kLow = 0x00ff00ffu;
            for (int i = 0; i < Slab::kMinEights; ++i) {
                uint32_t low[2], high[2];
                for (int j = 0; j < 2; ++j) {
                    const auto a = static_cast<uint32_t>(pairs[4 * i + 2 * j]);
                    const auto b = static_cast<uint32_t>(pairs[4 * i + 2 * j + 1]);
                    low[j] = (a & kLow) | (b & kLow) << 8;
                    high[j] = (a >> 8 & kLow) | (b & ~kLow);
                }
                __builtin_memcpy(low_sums.v[i][n / 2][n % 2], low, 8);
                __builtin_memcpy(high_sums.v[i][n / 2][n % 2], high, 8);
            }
        }

        template <class Before>
        CHASKI_INLINE void add(const uint8_t* slab, int, const Before& before, Sums<1, kTokens>& y,
                               Prefetch<1>& prefetch) const {
            unroll<kHalves>([&](auto h) __attribute__((always_inline)) {
                const uint8_t* half = slab + h * Slab::kHalf;
                IntegerSums<T> products;
                for_sums<T>([&](auto r, auto t)
                                __attribute__((always_inline)) { products.v[r][t] = vdupq_n_s32(0); });
                for (int b = 0; b < kShifts; ++b) {
                    prefetch.fetch();
                    unroll<32 / kSubElements>([&](auto i) __attribute__((always_inline)) {
                        add_sub_block(half, 32 / kSubElements * b + i, b, products);
                    });
                }
                FloatSums<T> own = take<h.value, kTokens>(before);
                finish_super_block(half, products, own);
                give<h.value, kTokens>(own, y);
            });
        }

        CHASKI_INLINE void add_sub_block(const uint8_t* half, int s, int b, IntegerSums<T>& products) const {
            const uint8_t* slab = half + s * Slab::kSubBlock;
            const IntegerSums<T> isum = multiply<kSubElements / 8>(slab, values, kSubElements / 8 * s);
            const auto* scales = reinterpret_cast<const int16_t*>(slab + Slab::kCodes);
            // Sums of a sub-block fit 16 bits: eight of them, of two pairs of rows, times as many scales.
            unroll<kRowPairs / 2 * T>([&](auto i) __attribute__((always_inline)) {
                constexpr int r = 2 * (i.value / T), t = i.value % T;
                const int16x8_t scale = vshlq_s16(vld1q_s16(scales + 4 * r), vld1q_s16(shifts[b][t]));
                const int16x8_t sums =
                    vuzp1q_s16(vreinterpretq_s16_s32(isum.v[r][t]), vreinterpretq_s16_s32(isum.v[r + 1][t]));
                products.v[r][t] = vmlal_s16(products.v[r][t], vget_low_s16(sums), vget_low_s16(scale));
                products.v[r + 1][t] = vmlal_high_s16(products.v[r + 1][t], sums, scale);
            });
        }

        CHASKI_INLINE void finish_super_block(const uint8_t* half, const IntegerSums<T>& products,
                                              FloatSums<T>& y) const {
            for_sums<T>([&](auto r, auto t) __attribute__((always_inline)) {
                float32x4_t sum = vmulq_f32(vcvtq_f32_s32(products.v[r][t]), floats_at(half + Slab::kD, r));
                if constexpr (kMinSub != 0) {
                    const float32x4_t mins = vcvtq_f32_s32(sum_of_mins(half + Slab::kMins, r, t));
                    sum = vfmaq_f32(sum, mins, floats_at(half + Slab::kDMin, r));
                }
                y.v[r][t] = vfmaq_f32(y.v[r][t], sum, units.get(0, t));
            });
        }

        CHASKI_INLINE int32x4_t sum_of_mins(const uint8_t* mins, int r, int t) const {
            int32x4_t high = vdupq_n_s32(0);
            unroll<Slab::kMinEights>([&](auto i) __attribute__((always_inline)) {
                const uint8x16_t own = vld1q_u8(mins + i * kEight + 16 * r);
                high = vmmlaq_s32(high, vreinterpretq_s8_u8(own), high_sums.get(i, t));
            });
            uint32x4_t sum = vreinterpretq_u32_s32(vshlq_n_s32(high, 8));
            unroll<Slab::kMinEights>([&](auto i) __attribute__((always_inline)) {
                const uint8x16_t own = vld1q_u8(mins + i * kEight + 16 * r);
                sum = vmmlaq_u32(sum, own, vreinterpretq_u8_s8(low_sums.get(i, t)));
            });
            return vreinterpretq_s32_u32(sum);
        }
    };
};

template <class Format>
static void multiply_as(const Matrix& w, int64_t begin, int64_t end, const Activations& x, int64_t n,
                        const Output& out, void* scratch, const Variant& variant) {
    Unpacker u{};
    if constexpr (Format::kIsSuper) {
        u.unpack = unpack_super_block<Format>;
        run_product<I8mmSuperQuantized<Format::kSub, Format::kMinSub>>(u, w, begin, end, x, n, out, scratch,
                                                                       variant);
    } else {
        u.unpack = unpack_blocks<Format>;
        run_product<I8mmQuantized<Format::kMins, Format::kSub>>(u, w, begin, end, x, n, out, scratch,
                                                                variant);
    }
}

template <class... Formats>
static void multiply_listed(FormatList<Formats...>, const Matrix& w, int64_t begin, int64_t end,
                            const Activations& x, int64_t n, const Output& out, void* scratch,
                            const Variant& variant) {
    ((w.type == Formats::kType ? multiply_as<Formats>(w, begin, end, x, n, out, scratch, variant) : void()),
     ...);
}

void matmul_quantized(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x,
                      int64_t n, const Output& out, void* scratch, const Variant& variant) {
    if (n <= kI8mmStreamTokens) {
        return neon::matmul_quantized(w, panel_begin, panel_end, x, n, out, scratch, variant);
    }
    if (wants_super_blocks(w.type)) {
        return multiply_listed(SuperBlockFormats{}, w, panel_begin, panel_end, x, n, out, scratch, variant);
    }
    if (has_codebook(w.type)) {
        return multiply_listed(CodebookFormats{}, w, panel_begin, panel_end, x, n, out, scratch, variant);
    }
    multiply_listed(BlockFormats{}, w, panel_begin, panel_end, x, n, out, scratch, variant);
}

int64_t scratch_bytes_quantized(int64_t k, int64_t n) {
    int64_t most = neon::scratch_bytes_quantized(k, n);
    for (int64_t bytes :
         {product_scratch_bytes<I8mmQuantized<true>>(n), product_scratch_bytes<I8mmQuantized<false, 16>>(n),
          product_scratch_bytes<I8mmSuperQuantized<16, 16>>(n)}) {
        if (bytes > most) most = bytes;
    }
    return most;
}

}  // namespace chaski::CHASKI_ISA
