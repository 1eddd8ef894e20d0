// Matrices of block-quantized types, by the rule in matmul.h. Panels are unpacked to a slab (unpack.h), which
// is then multiplied with tiles of P panels by N tokens that live in registers. Few tokens: the slab is a
// short run of k of one panel and stays in the first-level cache. Many tokens: the slab is all of k of
// several panels and stays in the second-level cache while all tokens pass. The sums are the same, bit for
// bit.
#include "coefficients.h"
#include "entry_points.h"
#include "finish.h"
#include "tiles.h"
#include "unpack.h"

namespace chaski::CHASKI_ISA {

// What the kernels must know at compile time about a format.
template <int kSubElements, bool kHasMins, int kLargestCode>
struct Kind {
    static constexpr int kSub = kSubElements;
    static constexpr bool kMins = kHasMins;
    static constexpr int kMaxCode = kLargestCode;
    static constexpr int kBytes = kSubBytes<kSub, kMins>;
};

constexpr int kStep = 256;  // elements of k for which coefficients are prepared at a time

template <int P, int N>
struct Sums {
    F32x16 v[P][N];
};

// Adds the sub-block at `slab` (P panels, slab_stride apart), number s of the coefficients.
template <class K, int P, int N, class C>
CHASKI_INLINE void add_sub_block(const uint8_t* slab, int64_t slab_stride, const C& c, int s,
                                 const int8_t* values, int64_t k, Sums<P, N>& y) {
    I32x16 isum[P][N];
#pragma GCC unroll 16
    for (int n = 0; n < N; ++n) {
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) isum[p][n] = splat(c.start[n][s]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < K::kSub / 4; ++i) {
        U8x64 codes[P];
#pragma GCC unroll 16
        for (int p = 0; p < P; ++p) codes[p] = load_u8(slab + p * slab_stride + 64 * i);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) {
            const auto x = read<int32_t>(values + n * k + 4 * i);
#pragma GCC unroll 16
            for (int p = 0; p < P; ++p) isum[p][n] = dot4<K::kMaxCode>(isum[p][n], codes[p], x);
        }
    }
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
        const auto* scales = reinterpret_cast<const float*>(slab + p * slab_stride + kLanes * K::kSub);
        const F32x16 scale = load_f32(scales);
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n)
            y.v[p][n] = fma(to_f32(isum[p][n]), scale * splat(c.scale[n][s]), y.v[p][n]);
        if constexpr (K::kMins) {
            const F32x16 min = load_f32(scales + kLanes);
#pragma GCC unroll 16
            for (int n = 0; n < N; ++n) y.v[p][n] = fma(min, splat(c.sum[n][s]), y.v[p][n]);
        }
    }
}

// Adds `elements` (at most kStep) of k from `at` on.
template <class K, int P, int N>
CHASKI_INLINE void add_step(const uint8_t* slab, int64_t slab_stride, int bias, const Activations& x,
                            int64_t k, int64_t token, int64_t at, int elements, Sums<P, N>& y) {
    Coefficients<K::kSub, kStep / K::kSub, N> c;
    c.template fill<K::kMins>(x, k, token, at, elements / K::kSub, bias);
    const int8_t* values = x.values + token * k + at;
    for (int s = 0; s < elements / K::kSub; ++s) {
        add_sub_block<K>(slab + s * K::kBytes, slab_stride, c, s, values + s * K::kSub, k, y);
    }
}

template <int P, int N>
CHASKI_INLINE Sums<P, N> zero_sums() {
    Sums<P, N> y;
    for (int p = 0; p < P; ++p) {
        for (int n = 0; n < N; ++n) y.v[p][n] = splat(0.0f);
    }
    return y;
}

template <int P, int N>
CHASKI_INLINE void finish(const Sums<P, N>& y, const Matrix& w, int64_t panel, int64_t token,
                          const Output& out) {
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 16
        for (int n = 0; n < N; ++n) {
            finish(y.v[p][n], out, token + n, kLanes * (panel + p), rows_in_panel(w, panel + p));
        }
    }
}

CHASKI_INLINE int step_elements(int64_t k, int64_t at) {
    return static_cast<int>(k - at < kStep ? k - at : kStep);
}

// Unpacks each step of a panel just before it is used.
template <class K, int N>
static void few_tokens(const Unpacker& u, const Matrix& w, int64_t begin, int64_t end, const Activations& x,
                       int64_t token, const Output& out) {
    alignas(64) uint8_t slab[kStep / K::kSub * K::kBytes];
    const int64_t stride = panel_bytes(w.type, w.k), step_bytes = kLanes * row_bytes(w.type, kStep);
    for (int64_t panel = begin; panel < end; ++panel) {
        const uint8_t* blocks = w.panels + panel * stride;
        Sums<1, N> y = zero_sums<1, N>();
        for (int64_t at = 0; at < w.k; at += kStep, blocks += step_bytes) {
            const int elements = step_elements(w.k, at);
            u.unpack(blocks, elements, slab);
            add_step<K>(slab, 0, u.offset - dot4_bias<K::kMaxCode>, x, w.k, token, at, elements, y);
        }
        finish(y, w, panel, token, out);
    }
}

template <class K, int P, int N>
static void tile(const uint8_t* slab, int64_t slab_stride, int bias, const Matrix& w, int64_t panel,
                 const Activations& x, int64_t token, const Output& out) {
    Sums<P, N> y = zero_sums<P, N>();
    for (int64_t at = 0; at < w.k; at += kStep, slab += kStep / K::kSub * K::kBytes) {
        add_step<K>(slab, slab_stride, bias, x, w.k, token, at, step_elements(w.k, at), y);
    }
    finish(y, w, panel, token, out);
}

// The panels of a slab against all tokens from `token` on, N at a time, the rest by smaller tiles.
template <class K, int N>
static void all_tokens(const uint8_t* slab, int64_t slab_stride, int bias, const Matrix& w, int64_t begin,
                       int64_t end, const Activations& x, int64_t token, int64_t n, const Output& out) {
    constexpr int P = kTilePanels;
    for (; token + N <= n; token += N) {
        const uint8_t* at = slab;
        int64_t panel = begin;
        for (; panel + P <= end; panel += P, at += P * slab_stride) {
            tile<K, P, N>(at, slab_stride, bias, w, panel, x, token, out);
        }
        for (; panel < end; ++panel, at += slab_stride) {
            tile<K, 1, N>(at, slab_stride, bias, w, panel, x, token, out);
        }
    }
    if constexpr (N > 1) {
        if (token < n)
            all_tokens<K, kSmallerTile<N>>(slab, slab_stride, bias, w, begin, end, x, token, n, out);
    }
}

// Panels per slab: as many as kSlabBytes holds, but at least one tile's.
static int64_t slab_panels(const Unpacker& u, int64_t k) {
    const int64_t fit = kSlabBytes / slab_bytes(u, k) / kTilePanels * kTilePanels;
    return fit > kTilePanels ? fit : kTilePanels;
}

template <class K>
static void many_tokens(const Unpacker& u, const Matrix& w, int64_t begin, int64_t end, const Activations& x,
                        int64_t n, const Output& out, uint8_t* slab) {
    const int64_t stride = panel_bytes(w.type, w.k), slab_stride = slab_bytes(u, w.k),
                  step = slab_panels(u, w.k);
    const int bias = u.offset - dot4_bias<K::kMaxCode>;
    for (; begin < end; begin += step) {
        const int64_t stop = begin + step < end ? begin + step : end;
        for (int64_t panel = begin; panel < stop; ++panel) {
            u.unpack(w.panels + panel * stride, w.k, slab + (panel - begin) * slab_stride);
        }
        all_tokens<K, kTileTokens>(slab, slab_stride, bias, w, begin, stop, x, 0, n, out);
    }
}

template <class K>
static void matmul_kind(const Unpacker& u, const Matrix& w, int64_t begin, int64_t end, const Activations& x,
                        int64_t n, const Output& out, void* scratch) {
    switch (n) {
        case 1:
            return few_tokens<K, 1>(u, w, begin, end, x, 0, out);
        case 2:
            return few_tokens<K, 2>(u, w, begin, end, x, 0, out);
        case 3:
            return few_tokens<K, 3>(u, w, begin, end, x, 0, out);
        case 4:
            return few_tokens<K, 4>(u, w, begin, end, x, 0, out);
        default:
            return many_tokens<K>(u, w, begin, end, x, n, out, static_cast<uint8_t*>(scratch));
    }
}

void matmul_quantized(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x,
                      int64_t n, const Output& out, void* scratch) {
    const Unpacker& u = unpacker_of(w.type);
    // 255 and 127 stand for all largest codes that dot4 treats alike.
    constexpr int kWide = dot4_bias<255> == 0 ? 127 : 255;
    if (u.sub == 16 && u.mins)
        return matmul_kind<Kind<16, true, 127>>(u, w, panel_begin, panel_end, x, n, out, scratch);
    if (u.sub == 16)
        return matmul_kind<Kind<16, false, 127>>(u, w, panel_begin, panel_end, x, n, out, scratch);
    if (u.mins) return matmul_kind<Kind<32, true, 127>>(u, w, panel_begin, panel_end, x, n, out, scratch);
    if (u.max_code > 127)
        return matmul_kind<Kind<32, false, kWide>>(u, w, panel_begin, panel_end, x, n, out, scratch);
    return matmul_kind<Kind<32, false, 127>>(u, w, panel_begin, panel_end, x, n, out, scratch);
}

int64_t matmul_scratch_bytes(const Matrix& w, int64_t n) {
    if (n <= kFewTokens || !is_quantized(w.type)) return 0;
    const Unpacker& u = unpacker_of(w.type);
    return slab_panels(u, w.k) * slab_bytes(u, w.k);
}

}  // namespace chaski::CHASKI_ISA
