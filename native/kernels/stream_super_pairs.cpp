// Few tokens, weights of types with super-blocks, two panels at a time: the loaded data of a token multiply
// both. Codes are unpacked in registers and used at once, with up to kStreamTile tokens at a time; further
// tokens pass while the panels are still in a cache.
#include "entry_points.h"
#include "stream_quantized.h"

namespace chaski::CHASKI_ISA {

// sums = codes of sub-block S of each panel * values of the super-block that begins with element `at` of k.
template <int S, class Format, int N>
CHASKI_INLINE void sum_sub_block(const Format (&blocks)[2], const TokenTerms<Format>& x, int64_t at,
                                 I32x16 (&sums)[2][N]) {
    for (int n = 0; n < N; ++n) sums[0][n] = sums[1][n] = x.start(n, at, S);
    unroll<Format::kSub / 4>([&](auto i) __attribute__((always_inline)) {
        const U8x64 codes[2] = {blocks[0].template codes<S, i.value>(),
                                blocks[1].template codes<S, i.value>()};
        for (int n = 0; n < N; ++n) {
            const int32_t four = x.four(n, at + Format::kSub * S + 4 * i);
            for (int p = 0; p < 2; ++p) sums[p][n] = dot4<Format::kMaxCode>(sums[p][n], codes[p], four);
        }
    });
}

// y += a super-block of each panel * values, from element `at` of k on.
template <class Format, int N>
CHASKI_INLINE void add_super_blocks(const Format (&blocks)[2], const TokenTerms<Format>& x, int64_t at,
                                    const LookAhead& ahead, F32x16 (&y)[2][N]) {
    constexpr int kSub = Format::kSub, kStep = kPairStep<kSub>, kPairs = kSuperElements / kSub / 2;
    const int64_t number = at / kSuperElements;
    I32x16 products[2][N];
    for (auto& of_panel : products) {
        for (I32x16& sum : of_panel) sum = splat(0);
    }
    unroll<kPairs>([&](auto pair) __attribute__((always_inline)) {
        constexpr int kFirst = first_of_pair<kSub, pair.value>;
        for (const Format& block : blocks) ahead.template fetch<Format::kBytes, pair.value, kPairs>(block.p);
        I32x16 low[2][N], high[2][N];
        sum_sub_block<kFirst>(blocks, x, at, low);
        sum_sub_block<kFirst + kStep>(blocks, x, at, high);
        for (int p = 0; p < 2; ++p) {
            const I32x16 scales = blocks[p].template scales<pair.value>();
            for (int n = 0; n < N; ++n) {
                const I32x16 shifted = shift_pairs(scales, shifts_of(x.of(n, number), pair / kStep));
                products[p][n] = dot2(products[p][n], pairs(low[p][n], high[p][n]), shifted);
            }
        }
        asm volatile("" ::: "memory");  // else loads for the next pair take the registers of these sums
    });
    for (int p = 0; p < 2; ++p) {
        add_in_scales(blocks[p], products[p], [&](int n) -> const auto& { return x.of(n, number); }, y[p]);
    }
}

// Multiplies two panels by N tokens, from number `first` of the batch on.
template <class Format, int N>
static __attribute__((noinline)) void two_panels(const Matrix& w, int64_t panel, const TokenTerms<Format>& x,
                                                 const Output& out, int64_t first, const LookAhead& ahead) {
    const int64_t bytes = panel_bytes(w.type, w.k);
    const uint8_t* block = w.panels + panel * bytes;
    F32x16 y[2][N];
    for (auto& of_panel : y) {
        for (F32x16& sum : of_panel) sum = splat(0.0f);
    }
    for (int64_t at = 0; at < w.k; at += kSuperElements, block += Format::kBytes) {
        const Format blocks[2] = {{{{block}}}, {{{block + bytes}}}};
        add_super_blocks(blocks, x, at, ahead, y);
    }
    unroll<2 * N>([&](auto i) __attribute__((always_inline)) {
        const int64_t of = panel + i / N;
        finish(y[i / N][i % N], out, first + i % N, kLanes * of, rows_in_panel(w, of));
    });
}

template <class Format>
static void stream_pairs(const Matrix& w, int64_t begin, int64_t end, const Activations& x, int64_t n,
                         const Output& out, void* scratch, const Variant& variant) {
    const TokenTerms<Format> tokens(x, w.k, n, scratch);
    const LookAhead ahead{2 * panel_bytes(w.type, w.k), variant.to_first_level};
    for (int64_t panel = begin; panel + 1 < end; panel += 2) {
        // No part of kPairedTokens or more tokens is a single token.
        for_parts<kStreamTile, 2>(n, [&](int64_t first, auto size) {
            // The first tokens wait for memory; the last ones have time to prefetch the next panels.
            two_panels<Format, size.value>(w, panel, tokens.from(first), out, first,
                                           first + size == n ? ahead : LookAhead{});
        });
    }
    if ((end - begin) % 2 == 1) stream_super_blocks(w, end - 1, end, x, n, out, scratch, variant);
}

template <class... Formats>
CHASKI_INLINE void stream_pairs_as(FormatList<Formats...>, const Matrix& w, int64_t begin, int64_t end,
                                   const Activations& x, int64_t n, const Output& out, void* scratch,
                                   const Variant& variant) {
    ((w.type == Formats::kType ? stream_pairs<Formats>(w, begin, end, x, n, out, scratch, variant) : void()),
     ...);
}

void stream_super_pairs(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x,
                        int64_t n, const Output& out, void* scratch, const Variant& variant) {
    if constexpr (kHasPairs)
        stream_pairs_as(SuperBlockFormats(), w, panel_begin, panel_end, x, n, out, scratch, variant);
}

}  // namespace chaski::CHASKI_ISA
