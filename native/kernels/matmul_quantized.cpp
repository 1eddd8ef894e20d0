// Matrices of block-quantized types, by the rule in matmul.h.
#include "coefficients.h"
#include "entry_points.h"
#include "product.h"
#include "stream_quantized.h"

#if defined(__AVX512VNNI__)
#include "amx.h"
#endif

namespace chaski::CHASKI_ISA {

// A quantized format, as far as the kernels must know it at compile time; kPowers: so are the activations'
// scales.
template <int kSubElements, bool kHasMins, int kLargestCode, bool kPowers>
struct Quantized {
    static constexpr int kStep = 256;
    static constexpr int P = kTilePanels, N = kTileTokens;
    template <int kTokens>
    static constexpr int kSmaller = kTokens - 1;
    static constexpr int kGroup = kGroupPanels;
    static Unpack unpack_of(const Unpacker& u) { return u.unpack; }
    static constexpr int kSub = kSubElements;
    static constexpr int kSlab = kStep / kSub * kSubBytes<kSub, kHasMins>;  // of one panel

    // What the tokens of a tile bring to a step, whatever the panels.
    template <int kTokens>
    struct Tokens {
        Coefficients<kSub, kHasMins, kStep / kSub, kTokens, true, kPowers> c;
        const int8_t* values;
        int64_t k;

        Tokens(const Unpacker& u, const Activations& x, int64_t width, int64_t token, int, int64_t at,
               int elements)
            : values(x.values + token * width + at), k(width) {
            c.fill(x, width, token, at, elements / kSub, u.offset - dot4_bias<kLargestCode>);
        }

        template <int kPanels>
        CHASKI_INLINE void add(const uint8_t* slab, int elements, Sums<kPanels, kTokens>& y,
                               Ahead<kPanels>& ahead) const {
            for (int s = 0; s < elements / kSub; ++s) {
                ahead.fetch();
                add_sub_block(slab + s * kSubBytes<kSub, kHasMins>, s, y);
            }
        }

        template <int kPanels>
        CHASKI_INLINE void add_sub_block(const uint8_t* slab, int s, Sums<kPanels, kTokens>& y) const {
            I32x16 isum[kPanels][kTokens];
#pragma GCC unroll 16
            for (int n = 0; n < kTokens; ++n) {
#pragma GCC unroll 16
                for (int p = 0; p < kPanels; ++p) isum[p][n] = splat(c.start[n][s]);
            }
#pragma GCC unroll 16
            for (int i = 0; i < kSub / 4; ++i) {
                U8x64 codes[kPanels];
#pragma GCC unroll 16
                for (int p = 0; p < kPanels; ++p) codes[p] = load_u8(slab + p * kSlab + 64 * i);
#pragma GCC unroll 16
                for (int n = 0; n < kTokens; ++n) {
                    const auto x = read<int32_t>(values + n * k + kSub * s + 4 * i);
#pragma GCC unroll 16
                    for (int p = 0; p < kPanels; ++p)
                        isum[p][n] = dot4<kLargestCode>(isum[p][n], codes[p], x);
                }
            }
#pragma GCC unroll 16
            for (int p = 0; p < kPanels; ++p) {
                const auto* scales = reinterpret_cast<const float*>(slab + p * kSlab + kLanes * kSub);
                const F32x16 scale = load_f32(scales);
#pragma GCC unroll 16
                for (int n = 0; n < kTokens; ++n) {
                    const F32x16 x_scale = splat(c.scale[n][s]);
                    const F32x16 both = kPowers ? times_power(scale, x_scale) : scale * x_scale;
                    y.v[p][n] = fma(to_f32(isum[p][n]), both, y.v[p][n]);
                }
                if constexpr (kHasMins) {
                    const F32x16 min = load_f32(scales + kLanes);
#pragma GCC unroll 16
                    for (int n = 0; n < kTokens; ++n) y.v[p][n] = fma(min, splat(c.sum[n][s]), y.v[p][n]);
                }
            }
        }
    };
};

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

template <bool kPowers>
static void multiply_by_slabs(const Unpacker& u, const Matrix& w, int64_t panel_begin, int64_t panel_end,
                              const Activations& x, int64_t n, const Output& out, void* scratch) {
    // 127 and 255 stand for all largest codes that dot4 treats alike.
    constexpr int kNarrow = 127, kWide = dot4_bias<255> == 0 ? kNarrow : 255;
    const auto product = u.sub == 16 && u.mins  ? run_product<Quantized<16, true, kNarrow, kPowers>>
                         : u.sub == 16          ? run_product<Quantized<16, false, kNarrow, kPowers>>
                         : u.mins               ? run_product<Quantized<32, true, kNarrow, kPowers>>
                         : u.max_code > kNarrow ? run_product<Quantized<32, false, kWide, kPowers>>
                                                : run_product<Quantized<32, false, kNarrow, kPowers>>;
    product(u, w, panel_begin, panel_end, x, n, out, scratch);
}

void matmul_quantized(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x,
                      int64_t n, const Output& out, void* scratch) {
    if (stream_few(w, panel_begin, panel_end, x, n, out, scratch)) return;
    const auto multiply =
        kMovesExponents && x.in_powers ? multiply_by_slabs<kMovesExponents> : multiply_by_slabs<false>;
    multiply(unpacker_of(w.type), w, panel_begin, panel_end, x, n, out, scratch);
}

int64_t scratch_bytes_quantized(int64_t k, int64_t n) {
    return larger(stream_scratch_bytes(k), product_scratch_bytes<Quantized<16, true, 127, false>>(n));
}

#if defined(__AVX512VNNI__)
void matmul_quantized_amx(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x,
                          int64_t n, const Output& out, void* scratch) {
    const Unpacker& u = unpacker_of(w.type);
    if (n < kAmxTokens || u.sub != 32) return matmul_quantized(w, panel_begin, panel_end, x, n, out, scratch);
    const auto product = u.mins ? run_product<AmxQuantized<true>> : run_product<AmxQuantized<false>>;
    const TileShapes shapes(u.sub);
    asm volatile("ldtilecfg %0" ::"m"(shapes));
    product(u, w, panel_begin, panel_end, x, n, out, scratch);
    asm volatile("tilerelease");
}

int64_t scratch_bytes_quantized_amx(int64_t k, int64_t n) {
    return larger(scratch_bytes_quantized(k, n), product_scratch_bytes<AmxQuantized<true>>(n));
}
#endif

}  // namespace chaski::CHASKI_ISA
