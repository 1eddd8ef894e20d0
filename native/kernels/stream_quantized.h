// Few tokens, quantized weights: codes are unpacked in registers and used at once, with kStreamTile tokens at
// a time; further tokens pass while the panel is still in the first-level cache.
//
// Kernels read a panel at ascending addresses, which suits hardware prefetchers. On some processors the
// prefetchers keep up with one or two tokens, and prefetch instructions only cost time. On others these help;
// the best distance and cache must be measured (variants.h). The sub-blocks that share lines of codes are
// summed together:
//
//   for each run of 32 * kShared elements, line of codes, part of its bits:   integer sum of its sub-block
//   then, for each sub-block of the run in ascending k:                       y += scale * sum
//   or, with super-blocks, for each pair of them:                             products += scales * sums
#pragma once

#include <type_traits>

#include "blocks.h"
#include "codebook_sums.h"
#include "finish.h"
#include "super_blocks.h"
#include "tiles.h"
#include "variants.h"

namespace chaski::CHASKI_ISA {

// Numbers for each token and block that all panels need; computed once, in scratch memory.
template <class Format>
struct BlockTerms {
    static constexpr int kBias = Format::kOffset - dot4_bias<Format::kMaxCode>;
    static constexpr int kSubs = 32 / Format::kSub;  // of a block
    const int64_t blocks;
    int32_t* starts;  // [token][blocks * kSubs]: -bias * sum of values, the initial integer sum
    float* scales;    // [token][blocks]
    float* sums;      // [token][blocks]: -(scale * sum of values), which multiplies the min

    BlockTerms(const Activations& x, int64_t k, int64_t n, void* scratch)
        : blocks(k / 32),
          starts(static_cast<int32_t*>(scratch)),
          scales(reinterpret_cast<float*>(starts + n * blocks * kSubs)),
          sums(scales + n * blocks) {
        for (int64_t i = 0; i < n * blocks; ++i) {
            const int total = x.sums[2 * i] + x.sums[2 * i + 1];
            for (int s = 0; s < kSubs; ++s) {
                starts[kSubs * i + s] = -kBias * (kSubs == 1 ? total : x.sums[2 * i + s]);
            }
            scales[i] = x.scales[i];
            sums[i] = -(scales[i] * static_cast<float>(total));
        }
    }

    void skip(int64_t tokens) {
        starts += tokens * blocks * kSubs;
        scales += tokens * blocks;
        sums += tokens * blocks;
    }
    // The initial sum of sub-block number `sub`, counted from element `at` of k.
    CHASKI_INLINE I32x16 start(int n, int64_t at, int sub) const {
        return kBias == 0 ? splat(0) : splat(starts[n * blocks * kSubs + at / Format::kSub + sub]);
    }
    CHASKI_INLINE F32x16 scale(int n, int64_t block) const { return splat(scales[n * blocks + block]); }
    CHASKI_INLINE F32x16 sum(int n, int64_t block) const { return splat(sums[n * blocks + block]); }
};

// The same for super-blocks. If they need only the min of each block of 32, the tokens' own numbers are used
// in place, since copying them would take as long as one of the few panels of a piece.
template <class Format>
struct SuperBlockTerms {
    using Terms = std::conditional_t<Format::kMinSub == 32, SuperScale, SuperTerms>;
    const int64_t blocks;
    const Terms* terms;  // [token][blocks]

    SuperBlockTerms(const Activations& x, int64_t k, int64_t n, void* scratch) : blocks(k / kSuperElements) {
        if constexpr (Format::kMinSub == 32) {
            terms = x.supers;
        } else {
            auto* filled = static_cast<SuperTerms*>(scratch);
            for (int64_t i = 0; i < n * blocks; ++i) {
                filled[i].template fill<Format::kSub, Format::kMinSub>(x, i * kSuperElements,
                                                                       Format::kOffset);
            }
            terms = filled;
        }
    }

    void skip(int64_t tokens) { terms += tokens * blocks; }
    CHASKI_INLINE const Terms& of(int n, int64_t block) const { return terms[n * blocks + block]; }
    // The initial sum of sub-block number `sub` of the super-block that begins with element `at` of k.
    CHASKI_INLINE I32x16 start(int n, int64_t at, int sub) const {
        if constexpr (Format::kOffset == 0)
            return splat(0);
        else
            return splat(of(n, at / kSuperElements).starts[sub]);
    }
};

template <class Format>
struct TokenTerms : std::conditional_t<Format::kIsSuper, SuperBlockTerms<Format>, BlockTerms<Format>> {
    using Terms = std::conditional_t<Format::kIsSuper, SuperBlockTerms<Format>, BlockTerms<Format>>;
    const int8_t* values;
    const int64_t k;

    TokenTerms(const Activations& x, int64_t width, int64_t n, void* scratch)
        : Terms(x, width, n, scratch), values(x.values), k(width) {}

    // The numbers from this token on.
    TokenTerms from(int64_t token) const {
        TokenTerms later = *this;
        later.values += token * k;
        later.skip(token);
        return later;
    }
    // Four values from `element` of k on.
    CHASKI_INLINE int32_t four(int n, int64_t element) const {
        return read<int32_t>(values + n * k + element);
    }
};

// The sub-blocks of a run.
template <class Format>
inline constexpr int kSubsOfRun = 32 * Format::kShared / Format::kSub;

// Their integer sums, for run number R of the block that begins with element `at` of k.
template <int R, class Format, int N>
CHASKI_INLINE void sum_run(Format block, const TokenTerms<Format>& x, int64_t at,
                           I32x16 (&isum)[kSubsOfRun<Format>][N]) {
    constexpr int kSub = Format::kSub, kShared = Format::kShared, kFirst = R * kSubsOfRun<Format>;
    unroll<kSubsOfRun<Format> * N>([&](auto i) __attribute__((always_inline)) {
        isum[i / N][i % N] = x.start(i % N, at, kFirst + i / N);
    });
    constexpr int kRun = dot4_run<Format::kMaxCode>;
    [[maybe_unused]] PairSums sums[kRun > 1 ? kSubsOfRun<Format> : 1][N];
    unroll<8 * kShared>([&](auto i) __attribute__((always_inline)) {
        constexpr int kElement = 32 * (i % kShared) + 4 * (i / kShared), kS = kElement / kSub;
        constexpr int kStep = kElement % kSub / 4;
        const U8x64 codes = block.template codes<kFirst + kS, kStep>();
        for (int n = 0; n < N; ++n) {
            const int32_t values = x.four(n, at + kFirst * kSub + kElement);
            if constexpr (kRun == 1) {
                isum[kS][n] = dot4<Format::kMaxCode>(isum[kS][n], codes, values);
            } else {
                sums[kS][n] = kStep % kRun == 0 ? first_pairs<Format::kMaxCode>(codes, values)
                                                : add_pairs<Format::kMaxCode>(sums[kS][n], codes, values);
                if constexpr ((kStep + 1) % kRun == 0 || kStep + 1 == kSub / 4) {
                    isum[kS][n] = add_sums(isum[kS][n], sums[kS][n]);
                }
            }
        }
    });
}

// y += the scaled sums.
template <int R, class Format, int N>
CHASKI_INLINE void add_sums_of_run(Format block, const TokenTerms<Format>& x, int64_t at,
                                   const I32x16 (*isum)[N], F32x16 (&y)[N]) {
    unroll<kSubsOfRun<Format>>([&](auto s) __attribute__((always_inline)) {
        constexpr int kS = R * kSubsOfRun<Format> + s;
        const F32x16 scale = block.template scale<kS>();
        for (int n = 0; n < N; ++n) {
            const F32x16 own = x.scale(n, at / 32 + kS * Format::kSub / 32);
            y[n] = fma(to_f32(isum[s][n]), scale * own, y[n]);
        }
        if constexpr (Format::kMins) {
            const F32x16 min = block.template min<kS>();
            for (int n = 0; n < N; ++n) y[n] = fma(min, x.sum(n, at / 32 + kS), y[n]);
        }
    });
}

template <int R, class Format, int N>
CHASKI_INLINE void add_super_run(Format block, const TokenTerms<Format>& x, int64_t at,
                                 I32x16 (&products)[N]) {
    constexpr int kSub = Format::kSub, kStep = kPairStep<kSub>, kPairs = kSubsOfRun<Format> / 2;
    I32x16 isum[kSubsOfRun<Format>][N];
    sum_run<R>(block, x, at, isum);
    unroll<kPairs>([&](auto p) __attribute__((always_inline)) {
        constexpr int kPair = R * kPairs + p, kFirst = first_of_pair<kSub, p.value>;
        const I32x16 scales = block.template scales<kPair>();
        for (int n = 0; n < N; ++n) {
            const I32x16 shifted =
                shift_pairs(scales, shifts_of(x.of(n, at / kSuperElements), kPair / kStep));
            products[n] = dot2(products[n], pairs(isum[kFirst][n], isum[kFirst + kStep][n]), shifted);
        }
    });
}

// Prefetches lines of memory gradually: a processor keeps a dozen requests in flight and waits on more.
struct LookAhead {
    int64_t distance;  // in bytes; 0 for none
    bool to_first_level;

    // For part `kPart` of `kParts` of the block at `p`.
    template <int kBytes, int kPart, int kParts>
    CHASKI_INLINE void fetch(const uint8_t* p) const {
        constexpr int kLines = (kBytes + 63) / 64, kFirst = kLines * kPart / kParts,
                      kLast = kLines * (kPart + 1) / kParts;
        if (distance == 0) return;
        if (to_first_level) {
            for (int line = kFirst; line < kLast; ++line) __builtin_prefetch(p + distance + 64 * line, 0, 3);
        } else {
            for (int line = kFirst; line < kLast; ++line) __builtin_prefetch(p + distance + 64 * line, 0, 2);
        }
    }
};

// y += the scaled sums of a super-block; `terms` returns the numbers of a token.
template <class Format, int N, class Terms>
CHASKI_INLINE void add_in_scales(Format block, const I32x16 (&products)[N], const Terms& terms,
                                 F32x16 (&y)[N]) {
    const F32x16 d = block.d();
    if constexpr (Format::kMins) {
        I32x16 mins[N];
        for (int n = 0; n < N; ++n) mins[n] = splat(0);
        unroll<kSuperElements / Format::kMinSub / 2>([&](auto p) __attribute__((always_inline)) {
            const I32x16 pair = block.template mins<p.value>();
            for (int n = 0; n < N; ++n) mins[n] = dot2(mins[n], pair, sums_of(terms(n), p));
        });
        const F32x16 dmin = block.dmin();
        for (int n = 0; n < N; ++n) {
            y[n] = add_scaled(y[n], products[n], d, mins[n], dmin, terms(n).unit);
        }
    } else {
        for (int n = 0; n < N; ++n) y[n] = add_scaled(y[n], products[n], d, terms(n).unit);
    }
}

// The block that begins with element `at` of k.
template <class Format, int N>
CHASKI_INLINE void add_block(Format block, const TokenTerms<Format>& x, int64_t at, const LookAhead& ahead,
                             F32x16 (&y)[N]) {
    constexpr int kRuns = Format::kElements / (32 * Format::kShared);
    const auto fetch = [&](auto r) __attribute__((always_inline)) {
        ahead.template fetch<Format::kBytes, r.value, kRuns>(block.p);
    };
    if constexpr (kSumsEntries && has_codebook(Format::kType)) {
        I32x16 isum[kRuns * kSubsOfRun<Format>][N];
        sum_entries(block, x.values + at, x.k, isum);
        unroll<kRuns>([&](auto r) __attribute__((always_inline)) {
            constexpr int kFirst = r * kSubsOfRun<Format>;
            fetch(r);
            if constexpr (Format::kHasDeltas) {
                unroll<kSubsOfRun<Format> * N>([&](auto i) __attribute__((always_inline)) {
                    I32x16& sum = isum[kFirst + i / N][i % N];
                    sum = sum + x.start(i % N, at, kFirst + i / N);
                });
            }
            add_sums_of_run<r.value>(block, x, at, isum + kFirst, y);
        });
    } else if constexpr (!Format::kIsSuper) {
        unroll<kRuns>([&](auto r) __attribute__((always_inline)) {
            I32x16 isum[kSubsOfRun<Format>][N];
            fetch(r);
            sum_run<r.value>(block, x, at, isum);
            add_sums_of_run<r.value>(block, x, at, isum, y);
        });
    } else {
        I32x16 products[N];
        for (int n = 0; n < N; ++n) products[n] = splat(0);
        unroll<kRuns>([&](auto r) __attribute__((always_inline)) {
            fetch(r);
            add_super_run<r.value>(block, x, at, products);
        });
        const int64_t number = at / kSuperElements;
        add_in_scales(block, products, [&](int n) -> const auto& { return x.of(n, number); }, y);
    }
}

// Multiplies `kAbreast` panels by N tokens, from number `first` of the batch on.
template <class Format, int kAbreast, int N>
static void stream_panels(const Matrix& w, int64_t panel, const TokenTerms<Format>& tokens, const Output& out,
                          int64_t first, const LookAhead& ahead) {
    const int64_t bytes = panel_bytes(w.type, w.k);
    const uint8_t* block = w.panels + panel * bytes;
    F32x16 y[kAbreast][N];
    unroll<kAbreast * N>([&](auto i) __attribute__((always_inline)) { y[i / N][i % N] = splat(0.0f); });
    for (int64_t at = 0; at < w.k; at += Format::kElements, block += Format::kBytes) {
        unroll<kAbreast>([&](auto p) __attribute__((always_inline)) {
            add_block(Format{{block + p * bytes}}, tokens, at, ahead, y[p]);
        });
    }
    unroll<kAbreast * N>([&](auto i) __attribute__((always_inline)) {
        const int64_t of = panel + i / N;
        finish(y[i / N][i % N], out, first + i % N, kLanes * of, rows_in_panel(w, of));
    });
}

template <class Format>
static void stream(const Matrix& w, int64_t begin, int64_t end, const Activations& x, int64_t n,
                   const Output& out, void* scratch, const Variant& variant) {
    const TokenTerms<Format> tokens(x, w.k, n, scratch);
    const bool by_panels = variant.ahead == Variant::kNextPanel;
    const LookAhead ahead{by_panels ? panel_bytes(w.type, w.k) : variant.ahead, variant.to_first_level};
    int64_t panel = begin;
    if constexpr (!Format::kIsSuper && !has_codebook(Format::kType)) {  // others have no such variant
        if (n == 1 && variant.in_pairs) {
            for (; panel + 1 < end; panel += 2) stream_panels<Format, 2, 1>(w, panel, tokens, out, 0, ahead);
        }
    }
    for (; panel < end; ++panel) {
        for_parts<kStreamTile>(n, [&](int64_t first, auto size) {
            // The first tokens wait for memory; the last ones have time to prefetch the next panel.
            const bool fetches = by_panels ? first + size == n : first == 0;
            stream_panels<Format, 1, size.value>(w, panel, tokens.from(first), out, first,
                                                 fetches ? ahead : LookAhead{});
        });
    }
}

template <class... Formats>
CHASKI_INLINE void stream_as(FormatList<Formats...>, const Matrix& w, int64_t begin, int64_t end,
                             const Activations& x, int64_t n, const Output& out, void* scratch,
                             const Variant& variant) {
    ((w.type == Formats::kType ? stream<Formats>(w, begin, end, x, n, out, scratch, variant) : void()), ...);
}

}  // namespace chaski::CHASKI_ISA
