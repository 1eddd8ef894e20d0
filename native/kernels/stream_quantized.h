// Few tokens, quantized weights: codes are used as they are unpacked, in registers, at the speed of memory.
#pragma once

#include "blocks.h"
#include "coefficients.h"
#include "finish.h"
#include "tiles.h"

namespace chaski::CHASKI_ISA {

// Memory is asked for this many bytes ahead; hardware prefetchers alone stop at the ends of pages.
constexpr int kAhead = 2048;

// One block of 16 rows into the sums of N tokens; `first` is the sub-block of `c` that it starts with.
template <class Format, class C, int N>
CHASKI_INLINE void add_block(Format block, const C& c, int first, const int8_t* values, int64_t k,
                             F32x16 (&y)[N]) {
    constexpr int kSubs = Format::kElements / Format::kSub;
    unroll<kSubs>([&](auto s) __attribute__((always_inline)) {
        for (int line = s * Format::kBytes / kSubs; line < (s + 1) * Format::kBytes / kSubs; line += 64) {
            __builtin_prefetch(block.p + kAhead + line);
        }
        I32x16 isum[N];
        for (int n = 0; n < N; ++n) isum[n] = splat(c.start[n][first + s]);
        unroll<Format::kSub / 4>([&](auto i) __attribute__((always_inline)) {
            const U8x64 codes = block.template codes<s.value, i.value>();
            for (int n = 0; n < N; ++n) {
                const auto x = read<int32_t>(values + n * k + Format::kSub * s + 4 * i);
                isum[n] = dot4<Format::kMaxCode>(isum[n], codes, x);
            }
        });
        const F32x16 scale = block.template scale<s.value>();
        for (int n = 0; n < N; ++n) y[n] = fma(to_f32(isum[n]), scale * splat(c.scale[n][first + s]), y[n]);
        if constexpr (Format::kMins) {
            const F32x16 min = block.template min<s.value>();
            for (int n = 0; n < N; ++n) y[n] = fma(min, splat(c.sum[n][first + s]), y[n]);
        }
    });
}

template <class Format, int N>
static void stream(const Matrix& w, int64_t begin, int64_t end, const Activations& x, const Output& out) {
    constexpr int kStep = 256;  // elements per filling of the coefficients
    constexpr int kBias = Format::kOffset - dot4_bias<Format::kMaxCode>;
    Coefficients<Format::kSub, Format::kMins, kStep / Format::kSub, N> c;
    for (int64_t panel = begin; panel < end; ++panel) {
        Format block{{w.panels + panel * panel_bytes(w.type, w.k)}};
        F32x16 y[N];
        for (int n = 0; n < N; ++n) y[n] = splat(0.0f);
        for (int64_t at = 0; at < w.k; at += kStep) {
            const int elements = static_cast<int>(w.k - at < kStep ? w.k - at : kStep);
            c.fill(x, w.k, 0, at, elements / Format::kSub, kBias);
            for (int e = 0; e < elements; e += Format::kElements, block.p += Format::kBytes) {
                add_block(block, c, e / Format::kSub, x.values + at + e, w.k, y);
            }
        }
        for (int n = 0; n < N; ++n) finish(y[n], out, n, kLanes * panel, rows_in_panel(w, panel));
    }
}

template <int N, class... Formats>
static void stream_tokens(FormatList<Formats...>, const Matrix& w, int64_t begin, int64_t end,
                          const Activations& x, const Output& out) {
    ((w.type == Formats::kType ? stream<Formats, N>(w, begin, end, x, out) : void()), ...);
}

// Whether n tokens were few enough, and are done.
template <int N>
static bool stream_few(const Matrix& w, int64_t begin, int64_t end, const Activations& x, int64_t n,
                       const Output& out) {
    if constexpr (N > 0) {
        if (n < N) return stream_few<N - 1>(w, begin, end, x, n, out);
        if (n == N) stream_tokens<N>(QuantizedFormats(), w, begin, end, x, out);
    }
    return n <= N;
}

}  // namespace chaski::CHASKI_ISA
