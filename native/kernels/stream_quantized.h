// Few tokens, quantized weights: codes are used as they are unpacked, in registers, with kStreamTile tokens
// at a time; further ones pass while the panel is still in the first-level cache.
//
// A panel is walked at ascending addresses, from its first byte to its last: then hardware prefetchers keep
// up with one or two tokens, and asking for memory ahead by instructions only costs time. With more tokens
// they fall behind, and the last ones of them ask for the next panel. The sub-blocks that share lines of
// codes are summed together:
//
//   for each run of 32 * kShared elements, line of codes, part of its bits:   integer sum of its sub-block
//   then, for each sub-block of the run in ascending k:                       y += scale * sum
#pragma once

#include "blocks.h"
#include "finish.h"
#include "tiles.h"

namespace chaski::CHASKI_ISA {

// What all panels need of the tokens, made once, in scratch memory: numbers for each token and sub-block.
template <class Format>
struct FewTokens {
    static constexpr int kBias = Format::kOffset - dot4_bias<Format::kMaxCode>;
    const int8_t* values;
    int64_t k;
    int64_t subs;
    int32_t* starts;  // [token][subs]: -bias * sum of values, where the integer sum starts
    float* scales;    // [token][subs]
    float* sums;      // [token][subs]: -(scale * sum of values), which multiplies the min

    FewTokens(const Activations& x, int64_t width, int64_t n, void* scratch)
        : values(x.values),
          k(width),
          subs(width / Format::kSub),
          starts(static_cast<int32_t*>(scratch)),
          scales(reinterpret_cast<float*>(starts + n * subs)),
          sums(scales + n * subs) {
        for (int64_t i = 0; i < n * subs; ++i) {
            const int total = Format::kSub == 16 ? x.sums[i] : x.sums[2 * i] + x.sums[2 * i + 1];
            starts[i] = -kBias * total;
            scales[i] = x.scales[i * Format::kSub / 32];
            sums[i] = -(scales[i] * static_cast<float>(total));
        }
    }

    // From this token on.
    FewTokens from(int64_t token) const {
        FewTokens later = *this;
        later.values += token * k;
        later.starts += token * subs;
        later.scales += token * subs;
        later.sums += token * subs;
        return later;
    }

    CHASKI_INLINE F32x16 scale(int n, int64_t sub) const { return splat(scales[n * subs + sub]); }
    CHASKI_INLINE F32x16 sum(int n, int64_t sub) const { return splat(sums[n * subs + sub]); }
    CHASKI_INLINE I32x16 start(int n, int64_t sub) const {
        return kBias == 0 ? splat(0) : splat(starts[n * subs + sub]);
    }
    // Four values from `element` of k on.
    CHASKI_INLINE int32_t four(int n, int64_t element) const {
        return read<int32_t>(values + n * k + element);
    }
};

// Run number R of a block of 16 rows, whose first sub-block is number `sub` along k, into the sums of N
// tokens.
template <int R, class Format, int N>
CHASKI_INLINE void add_run(Format block, const FewTokens<Format>& x, int64_t sub, F32x16 (&y)[N]) {
    constexpr int kSub = Format::kSub, kShared = Format::kShared, kSubs = 32 * kShared / kSub;
    I32x16 isum[kSubs][N];
    unroll<kSubs * N>([&](auto i) __attribute__((always_inline)) {
        isum[i / N][i % N] = x.start(i % N, sub + R * kSubs + i / N);
    });
    unroll<8 * kShared>([&](auto i) __attribute__((always_inline)) {
        constexpr int kElement = 32 * (i % kShared) + 4 * (i / kShared), kS = kElement / kSub;
        const U8x64 codes = block.template codes<R * kSubs + kS, kElement % kSub / 4>();
        unroll<N>([&](auto n) __attribute__((always_inline)) {
            const int32_t values = x.four(n, (sub + R * kSubs) * kSub + kElement);
            isum[kS][n] = dot4<Format::kMaxCode>(isum[kS][n], codes, values);
        });
    });
    unroll<kSubs>([&](auto s) __attribute__((always_inline)) {
        constexpr int kS = R * kSubs + s;
        const F32x16 scale = block.template scale<kS>();
        for (int n = 0; n < N; ++n) y[n] = fma(to_f32(isum[s][n]), scale * x.scale(n, sub + kS), y[n]);
        if constexpr (Format::kMins) {
            const F32x16 min = block.template min<kS>();
            for (int n = 0; n < N; ++n) y[n] = fma(min, x.sum(n, sub + kS), y[n]);
        }
    });
}

// One panel and N tokens, from number `first` of the batch on. What lies `ahead` bytes behind is fetched
// meanwhile, if it is not 0.
template <class Format, int N>
static void stream_panel(const Matrix& w, int64_t panel, const FewTokens<Format>& tokens, const Output& out,
                         int64_t first, int64_t ahead) {
    Format block{{w.panels + panel * panel_bytes(w.type, w.k)}};
    F32x16 y[N];
    for (int n = 0; n < N; ++n) y[n] = splat(0.0f);
    for (int64_t at = 0; at < w.k; at += Format::kElements, block.p += Format::kBytes) {
        for (int line = 0; ahead != 0 && line < Format::kBytes; line += 64) {
            __builtin_prefetch(block.p + ahead + line, 0, 2);
        }
        unroll<Format::kElements / (32 * Format::kShared)>([&](auto r) __attribute__((always_inline)) {
            add_run<r.value>(block, tokens, at / Format::kSub, y);
        });
    }
    for (int n = 0; n < N; ++n) finish(y[n], out, first + n, kLanes * panel, rows_in_panel(w, panel));
}

template <class Format>
static void stream(const Matrix& w, int64_t begin, int64_t end, const Activations& x, int64_t n,
                   const Output& out, void* scratch) {
    const FewTokens<Format> tokens(x, w.k, n, scratch);
    const int64_t next = panel_bytes(w.type, w.k);
    for (int64_t panel = begin; panel < end; ++panel) {
        for_parts<kStreamTile>(n, [&](int64_t first, auto size) {
            const bool fetches = n > 2 && first + size == n;
            stream_panel<Format, size.value>(w, panel, tokens.from(first), out, first, fetches ? next : 0);
        });
    }
}

constexpr int64_t stream_scratch_bytes(int64_t k) { return 3 * sizeof(float) * kStreamTokens * (k / 16); }

template <class... Formats>
static void stream_as(FormatList<Formats...>, const Matrix& w, int64_t begin, int64_t end,
                      const Activations& x, int64_t n, const Output& out, void* scratch) {
    ((w.type == Formats::kType ? stream<Formats>(w, begin, end, x, n, out, scratch) : void()), ...);
}

// Whether n tokens were few enough, and are done.
static bool stream_few(const Matrix& w, int64_t begin, int64_t end, const Activations& x, int64_t n,
                       const Output& out, void* scratch) {
    if (n > kStreamTokens) return false;
    if constexpr (kStreamTokens > 0) stream_as(QuantizedFormats(), w, begin, end, x, n, out, scratch);
    return true;
}

}  // namespace chaski::CHASKI_ISA
