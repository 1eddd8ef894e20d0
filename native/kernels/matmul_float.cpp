// Matrices of F32, F16 and BF16: y = fma(w, x, y) along k, weights widened as they are loaded. Lanes are
// rows, so a tile of P panels and N tokens keeps P * N independent sums in registers.
#include "entry_points.h"
#include "finish.h"
#include "simd.h"
#include "tiles.h"

namespace chaski::CHASKI_ISA {

struct F32Weights {
    static constexpr int kBytes = 64;  // of 16 rows, for one k
    static CHASKI_INLINE F32x16 load(const uint8_t* p) { return read<F32x16>(p); }
};
struct F16Weights {
    static constexpr int kBytes = 32;
    static CHASKI_INLINE F32x16 load(const uint8_t* p) { return load_f16(p); }
};
struct BF16Weights {
    static constexpr int kBytes = 32;
    static CHASKI_INLINE F32x16 load(const uint8_t* p) { return load_bf16(p); }
};

template <class Weights, int P, int N>
static void float_tile(const Matrix& w, int64_t panel, const Activations& x, int64_t token,
                       const Output& out) {
    const int64_t k = w.k, stride = panel_bytes(w.type, k);
    const uint8_t* weights = w.panels + panel * stride;
    const float* activations = x.floats + token * k;
    F32x16 acc[P][N];
    unroll<P * N>([&](auto i) __attribute__((always_inline)) { acc[i / N][i % N] = splat(0.0f); });
    for (int64_t i = 0; i < k; ++i, weights += Weights::kBytes) {
        F32x16 column[P];
        unroll<P>([&](auto p)
                      __attribute__((always_inline)) { column[p] = Weights::load(weights + p * stride); });
        unroll<N>([&](auto n) __attribute__((always_inline)) {
            const F32x16 activation = splat(activations[n * k + i]);
            unroll<P>([&](auto p) __attribute__((always_inline)) {
                acc[p][n] = fma(column[p], activation, acc[p][n]);
            });
        });
    }
    unroll<P * N>([&](auto i) __attribute__((always_inline)) {
        finish(acc[i / N][i % N], out, token + i % N, kLanes * (panel + i / N),
               rows_in_panel(w, panel + i / N));
    });
}

// One set of P panels against all tokens, N at a time.
template <class Weights, int P, int N>
static void float_panels(const Matrix& w, int64_t panel, const Activations& x, int64_t begin, int64_t n,
                         const Output& out) {
    for (; begin + N <= n; begin += N) float_tile<Weights, P, N>(w, panel, x, begin, out);
    if constexpr (N > 1) {
        if (begin < n) float_panels<Weights, P, N / 2>(w, panel, x, begin, n, out);
    }
}

template <class Weights, int P, int N>
static void float_matrix(const Matrix& w, int64_t panel, int64_t end, const Activations& x, int64_t n,
                         const Output& out) {
    for (; panel + P <= end; panel += P) float_panels<Weights, P, N>(w, panel, x, 0, n, out);
    for (; panel < end; ++panel) float_panels<Weights, 1, N>(w, panel, x, 0, n, out);
}

template <class Weights>
static void float_matrix(const Matrix& w, int64_t begin, int64_t end, const Activations& x, int64_t n,
                         const Output& out) {
    if (n <= kFloatFewTokens)
        return float_matrix<Weights, kFloatFewPanels, kFloatFewTokens>(w, begin, end, x, n, out);
    float_matrix<Weights, kFloatPanels, kFloatTokens>(w, begin, end, x, n, out);
}

void matmul_float(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x, int64_t n,
                  const Output& out) {
    switch (w.type) {
        case DType::F16:
            return float_matrix<F16Weights>(w, panel_begin, panel_end, x, n, out);
        case DType::BF16:
            return float_matrix<BF16Weights>(w, panel_begin, panel_end, x, n, out);
        default:
            return float_matrix<F32Weights>(w, panel_begin, panel_end, x, n, out);
    }
}

}  // namespace chaski::CHASKI_ISA
