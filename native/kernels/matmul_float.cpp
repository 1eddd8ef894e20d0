// Matrices of F32 and F16: y = fma(w, x, y) along k, weights widened to float32.
#include "blocks.h"
#include "entry_points.h"
#include "floats.h"

namespace chaski::CHASKI_ISA {

// Few tokens: weights are used directly after loading, from one place at a time, which suits memory best.
// Multiplies P interleaved panels by N tokens from `first` on. If `distance` is not 0, prefetches the data at
// this distance in bytes.
template <class Weights, int P, int N>
static void stream_panels(const Matrix& w, int64_t panel, const Activations& x, int64_t first,
                          const Output& out, int64_t distance) {
    const float* values = x.floats + first * w.k;
    const uint8_t* lines[P];
    for (int p = 0; p < P; ++p) lines[p] = w.panels + panel_start(w.type, w.k, panel + p);
    F32x16 y[P][N];
    for (auto& of_panel : y) {
        for (F32x16& sum : of_panel) sum = splat(0.0f);
    }
    for (int64_t i = 0; i < w.k; ++i) {
        if (distance != 0)
            __builtin_prefetch(lines[0] + distance + 64 * i, 0, 2);  // a line of F32, two of F16
        F32x16 column[P];
        for (int p = 0; p < P; ++p) column[p] = Weights::load(lines[p], i);
        unroll<N>([&](auto n) __attribute__((always_inline)) {
            const F32x16 value = splat(values[n * w.k + i]);
            for (int p = 0; p < P; ++p) y[p][n] = fma(column[p], value, y[p][n]);
        });
    }
    unroll<P * N>([&](auto i) __attribute__((always_inline)) {  // a constant index keeps sums in registers
        const int64_t own = panel + i / N;
        finish(y[i / N][i % N], out, first + i % N, kLanes * own, rows_in_panel(w, own));
    });
}

template <class Weights>
static void stream(const Matrix& w, int64_t begin, int64_t end, const Activations& x, int64_t n,
                   const Output& out) {
    constexpr int kInterleaved = interleaved_panels(Weights::kType);
    const int64_t next = kInterleaved * panel_bytes(w.type, w.k);
    for (int64_t panel = begin; panel < end;) {
        const bool is_whole = panel % kInterleaved == 0 && panel + kInterleaved <= end;
        for_parts<kFloatStreamTile>(n, [&](int64_t first, auto size) {
            const int64_t distance = n > kAloneTokens && first + size == n ? next : 0;
            if (is_whole)
                stream_panels<Weights, kInterleaved, size.value>(w, panel, x, first, out, distance);
            else
                stream_panels<Weights, 1, size.value>(w, panel, x, first, out, distance);
        });
        panel += is_whole ? kInterleaved : 1;
    }
}

void matmul_float(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x, int64_t n,
                  const Output& out, void* scratch) {
    if (n > kFloatStreamTokens) {
        run_product<Floats>(unpacker_of(w.type), w, panel_begin, panel_end, x, n, out, scratch);
    } else if (w.type == DType::F16) {
        stream<F16Weights>(w, panel_begin, panel_end, x, n, out);
    } else {
        stream<F32Weights>(w, panel_begin, panel_end, x, n, out);
    }
}

int64_t scratch_bytes_float(int64_t n) { return product_scratch_bytes<Floats>(n); }

}  // namespace chaski::CHASKI_ISA
