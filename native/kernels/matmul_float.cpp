// Matrices of F32 and F16: y = fma(w, x, y) along k, weights widened to float32.
#include "blocks.h"
#include "entry_points.h"
#include "product.h"

namespace chaski::CHASKI_ISA {

struct Floats {
    static constexpr int kStep = 128;
    static constexpr int kSub = 16;  // elements between two looks ahead
    static constexpr int P = kFloatPanels, N = kFloatTokens;
    template <int kTokens>
    static constexpr int kSmaller = kTokens - 1;
    static constexpr int kGroup = 4;
    static Unpack unpack_of(const Unpacker& u) { return u.unpack; }
    static constexpr int kSlab = kStep * 64;

    template <int kTokens>
    struct Tokens {
        const float* values;
        int64_t k;

        Tokens(const Unpacker&, const Activations& x, int64_t width, int64_t token, int, int64_t at, int)
            : values(x.floats + token * width + at), k(width) {}

        template <int kPanels>
        CHASKI_INLINE void add(const uint8_t* slab, int elements, Sums<kPanels, kTokens>& y,
                               Ahead<kPanels>& ahead) const {
            const auto* lines = reinterpret_cast<const float*>(slab);
            for (int i = 0; i < elements; ++i) {
                if (i % kSub == 0) ahead.fetch();
                F32x16 column[kPanels];
#pragma GCC unroll 16
                for (int p = 0; p < kPanels; ++p) column[p] = load_f32(lines + p * (kSlab / 4) + kLanes * i);
#pragma GCC unroll 16
                for (int n = 0; n < kTokens; ++n) {
                    const F32x16 x = splat(values[n * k + i]);
#pragma GCC unroll 16
                    for (int p = 0; p < kPanels; ++p) y.v[p][n] = fma(column[p], x, y.v[p][n]);
                }
            }
        }
    };
};

// Few tokens: weights are used as they are loaded, from one place at a time, which is what memory is fastest
// with. P panels, abreast.
template <class Weights, int P, int N>
CHASKI_INLINE void stream_panels(const Matrix& w, int64_t panel, const Activations& x, const Output& out) {
    const uint8_t* lines[P];
    for (int p = 0; p < P; ++p) lines[p] = w.panels + panel_start(w.type, w.k, panel + p);
    F32x16 y[P][N];
    for (auto& of_panel : y) {
        for (F32x16& sum : of_panel) sum = splat(0.0f);
    }
    for (int64_t i = 0; i < w.k; ++i) {
        for (int p = 0; p < P; ++p) {
            const F32x16 column = Weights::load(lines[p], i);
            for (int n = 0; n < N; ++n) y[p][n] = fma(column, splat(x.floats[n * w.k + i]), y[p][n]);
        }
    }
    for (int p = 0; p < P; ++p) {
        for (int n = 0; n < N; ++n)
            finish(y[p][n], out, n, kLanes * (panel + p), rows_in_panel(w, panel + p));
    }
}

template <class Weights, int N>
static void stream(const Matrix& w, int64_t begin, int64_t end, const Activations& x, const Output& out) {
    constexpr int kAbreast = panels_abreast(Weights::kType);
    int64_t panel = begin;
    while (panel < end) {
        if (panel % kAbreast == 0 && panel + kAbreast <= end) {
            stream_panels<Weights, kAbreast, N>(w, panel, x, out);
            panel += kAbreast;
        } else {
            stream_panels<Weights, 1, N>(w, panel++, x, out);
        }
    }
}

template <int N>
static void stream_tokens(const Matrix& w, int64_t begin, int64_t end, const Activations& x,
                          const Output& out) {
    if (w.type == DType::F16) return stream<F16Weights, N>(w, begin, end, x, out);
    stream<F32Weights, N>(w, begin, end, x, out);
}

void matmul_float(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x, int64_t n,
                  const Output& out, void* scratch) {
    if (n == 1) return stream_tokens<1>(w, panel_begin, panel_end, x, out);
    if (n == 2) return stream_tokens<2>(w, panel_begin, panel_end, x, out);
    run_product<Floats>(unpacker_of(w.type), w, panel_begin, panel_end, x, n, out, scratch);
}

int64_t scratch_bytes_float(int64_t n) { return product_scratch_bytes<Floats>(n); }

}  // namespace chaski::CHASKI_ISA
