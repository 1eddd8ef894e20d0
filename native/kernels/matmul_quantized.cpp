// Matrices of block-quantized types, by the rule in matmul.h.
#include "coefficients.h"
#include "entry_points.h"
#include "level_products.h"
#include "product.h"
#include "super_blocks.h"

#if defined(__AVX512VNNI__)
#include "amx.h"
#include "cpu_features.h"

// Compiled for further instructions, like the functions that table.cpp declares.
namespace chaski::avx512_vbmi {
void stream_codebooks(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x,
                      int64_t n, const Output& out, void* scratch, const Variant& variant);
}
#endif

namespace chaski::CHASKI_ISA {

static auto stream_of_codebooks() {
#if defined(__AVX512VNNI__)
    return cpu_features().vbmi ? avx512_vbmi::stream_codebooks : stream_codebooks;
#else
    return stream_codebooks;
#endif
}

// The largest codes of formats without super-blocks and levels: four, five or eight bits, which dot4 may
// treat alike.
constexpr int kNarrow = 31, kNarrowest = dot4_run<15> == dot4_run<31> ? kNarrow : 15;
constexpr int kWide = dot4_bias<255> == 0 ? kNarrow : 255;

// sums += codes * values, over kElements of k. `lines` are those of the first panel, and each next panel is
// kSlab further; `values` are those of the first token, and each next token is k further.
template <int kElements, int kSlab, int kLargestCode, int kPanels, int kTokens>
CHASKI_INLINE void add_products(const uint8_t* lines, const int8_t* values, int64_t k,
                                I32x16 (&sums)[kPanels][kTokens]) {
    constexpr int kRun = dot4_run<kLargestCode> < kElements / 4 ? dot4_run<kLargestCode> : kElements / 4;
    if constexpr (kRun > 1) {
        static_assert(kPanels == 1 && kElements / 4 % kRun == 0);
#pragma GCC unroll 16
        for (int i = 0; i < kElements / 4; i += kRun) {
            PairSums pairs[kTokens];
#pragma GCC unroll 16
            for (int j = i; j < i + kRun; ++j) {
                const U8x64 codes = load_u8(lines + 64 * j);
#pragma GCC unroll 16
                for (int n = 0; n < kTokens; ++n) {
                    const auto x = read<int32_t>(values + n * k + 4 * j);
                    pairs[n] = j == i ? first_pairs<kLargestCode>(codes, x)
                                      : add_pairs<kLargestCode>(pairs[n], codes, x);
                }
            }
#pragma GCC unroll 16
            for (int n = 0; n < kTokens; ++n) sums[0][n] = add_sums(sums[0][n], pairs[n]);
        }
        return;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kElements / 4; ++i) {
        U8x64 codes[kPanels];
#pragma GCC unroll 16
        for (int p = 0; p < kPanels; ++p) codes[p] = load_u8(lines + p * kSlab + 64 * i);
#pragma GCC unroll 16
        for (int n = 0; n < kTokens; ++n) {
            const auto x = read<int32_t>(values + n * k + 4 * i);
#pragma GCC unroll 16
            for (int p = 0; p < kPanels; ++p) sums[p][n] = dot4<kLargestCode>(sums[p][n], codes[p], x);
        }
    }
}

// The compile-time properties of a format without super-blocks. kSubElements share a scale.
template <bool kHasMins, int kLargestCode, int kSubElements = 32>
struct Quantized {
    static constexpr int kStep = 256;
    static constexpr int P = kTilePanels, N = kTileTokens;
    static constexpr int kSmallest = smallest_tile(N, kUnpackedTokens);
    static constexpr int kGroup = kGroupPanels, kFewPanels = P;
    static Unpack unpack_of(const Unpacker& u) { return u.unpack; }
    static constexpr int kSub = 32;
    static constexpr int kSubs = kSub / kSubElements;
    static constexpr int kBytes = kBlockBytes<kHasMins, kSubElements>;
    static constexpr int kSlab = kStep / kSub * kBytes;  // of one panel

    // The numbers of a tile's tokens that a step needs for every panel.
    template <int kTokens>
    struct Tokens {
        Coefficients<kHasMins, kStep / kSub, kTokens, true, kSubElements> c;
        const int8_t* values = kept;
        int64_t apart = kStep;  // distance between two tokens
        alignas(64) int8_t kept[kTokens * kStep];

        explicit Tokens(const TileInput& in) {
            const int8_t* own = in.x.values + in.first_of(0);
            if (in.is_kept) {
                for (int n = 0; n < kTokens; ++n) {
                    __builtin_memcpy(kept + n * kStep, own + n * in.k, in.elements);
                }
            } else {
                values = own;
                apart = in.k;
            }
            c.fill(in.x, in.k, in.token, kTokens, in.at, in.elements / kSub,
                   in.u.offset - dot4_bias<kLargestCode>);
        }

        template <int kPanels, class Before>
        CHASKI_INLINE void add(const uint8_t* slab, int elements, const Before& before,
                               Sums<kPanels, kTokens>& y, Prefetch<kPanels>& prefetch) const {
            y.take(before);
            for (int b = 0; b < elements / kSub; ++b) {
                prefetch.fetch();
                unroll<kSubs>([&](auto s) __attribute__((always_inline)) {
                    add_sub_block<s.value>(slab + b * kBytes, b, y);
                });
            }
        }

        // Sub-block S of block b.
        template <int S, int kPanels>
        CHASKI_INLINE void add_sub_block(const uint8_t* slab, int b, Sums<kPanels, kTokens>& y) const {
            I32x16 isum[kPanels][kTokens];
#pragma GCC unroll 16
            for (int n = 0; n < kTokens; ++n) {
#pragma GCC unroll 16
                for (int p = 0; p < kPanels; ++p) isum[p][n] = splat(c.start[n][kSubs * b + S]);
            }
            constexpr int kFirst = kSubElements * S;
            add_products<kSubElements, kSlab, kLargestCode>(slab + kLanes * kFirst,
                                                            values + kSub * b + kFirst, apart, isum);
#pragma GCC unroll 16
            for (int p = 0; p < kPanels; ++p) {
                const auto* scales = reinterpret_cast<const float*>(slab + p * kSlab + kLanes * kSub);
                const F32x16 scale = load_f32(scales + kLanes * S);
#pragma GCC unroll 16
                for (int n = 0; n < kTokens; ++n) {
                    y.v[p][n] = fma(to_f32(isum[p][n]), scale * splat(c.scale[n][b]), y.v[p][n]);
                }
                if constexpr (kHasMins) {
                    const F32x16 min = load_f32(scales + kLanes);
#pragma GCC unroll 16
                    for (int n = 0; n < kTokens; ++n) y.v[p][n] = fma(min, splat(c.sum[n][b]), y.v[p][n]);
                }
            }
        }
    };
};

// A format of 8-bit codes without super-blocks and mins, on processors that multiply int16 faster.
struct QuantizedWords {
    static constexpr int kStep = 256;
    static constexpr int P = kTilePanels, N = 6;
    static constexpr int kSmallest = smallest_tile(N, kUnpackedTokens);
    static constexpr int kGroup = kGroupPanels, kFewPanels = P;
    static Unpack unpack_of(const Unpacker& u) { return u.unpack_words; }
    static constexpr int kSub = 32;
    static constexpr int kSlab = kStep / kSub * kWordBlockBytes;

    template <int kTokens>
    struct Tokens {
        Coefficients<false, kStep / kSub, kTokens, false> c;
        alignas(64) int16_t values[kTokens * kStep];

        explicit Tokens(const TileInput& in) {
            c.fill(in.x, in.k, in.token, kTokens, in.at, in.elements / kSub, 0);
            for (int n = 0; n < kTokens; ++n) {
                const int8_t* own = in.x.values + in.first_of(n);
                for (int i = 0; i < in.elements; ++i) values[n * kStep + i] = own[i];
            }
        }

        template <int kPanels, class Before>
        CHASKI_INLINE void add(const uint8_t* slab, int elements, const Before& before,
                               Sums<kPanels, kTokens>& y, Prefetch<kPanels>& prefetch) const {
            y.take(before);
            for (int b = 0; b < elements / kSub; ++b) {
                prefetch.fetch();
                add_block(slab + b * kWordBlockBytes, b, y);
            }
        }

        template <int kPanels>
        CHASKI_INLINE void add_block(const uint8_t* slab, int b, Sums<kPanels, kTokens>& y) const {
            I32x16 sums[kPanels][kTokens];
#pragma GCC unroll 16
            for (int i = 0; i < kSub / 2; ++i) {
#pragma GCC unroll 16
                for (int p = 0; p < kPanels; ++p) {
                    const auto* line = reinterpret_cast<const int32_t*>(slab + p * kSlab + 64 * i);
                    const I32x16 codes = load_i32(line);
#pragma GCC unroll 16
                    for (int n = 0; n < kTokens; ++n) {
                        const auto x = read<int32_t>(values + n * kStep + kSub * b + 2 * i);
                        sums[p][n] = dot2(i == 0 ? splat(0) : sums[p][n], codes, x);
                    }
                }
            }
#pragma GCC unroll 16
            for (int p = 0; p < kPanels; ++p) {
                const F32x16 scale =
                    load_f32(reinterpret_cast<const float*>(slab + p * kSlab + 64 * kSub / 2));
#pragma GCC unroll 16
                for (int n = 0; n < kTokens; ++n) {
                    y.v[p][n] = fma(to_f32(sums[p][n]), scale * splat(c.scale[n][b]), y.v[p][n]);
                }
            }
        }
    };
};

// A format with super-blocks. Those with mins have no offset.
template <int kSubElements, int kMinSub, int kLargestCode>
struct SuperQuantized {
    using Slab = SuperSlab<kSubElements, kMinSub>;
    static constexpr int kStep = kSuperElements;
    static constexpr int P = kSuperTilePanels, N = kSuperTileTokens;
    static constexpr int kSmallest = smallest_tile(N, kUnpackedTokens);
    static constexpr int kGroup = kGroupPanels, kFewPanels = P;
    static Unpack unpack_of(const Unpacker& u) { return u.unpack; }
    static constexpr int kSub = 2 * kSubElements;  // a pair
    static constexpr int kSlab = Slab::kBytes;

    template <int kTokens>
    struct Tokens {
        SuperTerms terms[kTokens];
        alignas(64) int8_t values[kTokens * kStep];

        explicit Tokens(const TileInput& in) {
            for (int n = 0; n < kTokens; ++n) {
                __builtin_memcpy(values + n * kStep, in.x.values + in.first_of(n), kStep);
                terms[n].template fill<kSubElements, kMinSub>(in.x, in.first_of(n), in.u.offset);
            }
        }

        template <int kPanels, class Before>
        CHASKI_INLINE void add(const uint8_t* slab, int, const Before& before, Sums<kPanels, kTokens>& y,
                               Prefetch<kPanels>& prefetch) const {
            I32x16 products[kPanels][kTokens];
#pragma GCC unroll 2
            for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 16
                for (int n = 0; n < kTokens; ++n) products[p][n] = splat(0);
            }
            for (int pair = 0; pair < Slab::kPairs; ++pair) {
                prefetch.fetch();
                add_pair(slab, pair, products);
            }
#pragma GCC unroll 2
            for (int p = 0; p < kPanels; ++p) {
                const auto before_of = [&](int n)
                                           __attribute__((always_inline)) { return before(p * kTokens + n); };
                finish_super_block<Slab>(slab + p * kSlab, terms, products[p], before_of, y.v[p]);
            }
        }

        template <int kPanels>
        CHASKI_INLINE void add_pair(const uint8_t* slab, int pair,
                                    I32x16 (&products)[kPanels][kTokens]) const {
            constexpr int kApart = kPairStep<kSubElements>;
            const int first = 2 * pair - pair % kApart;
            const uint8_t* lines = slab + kLanes * kSub * pair;
            I32x16 low[kPanels][kTokens], high[kPanels][kTokens];
            start(first, low);
            start(first + kApart, high);
            add_pair_products(lines, first, low, high);
#pragma GCC unroll 2
            for (int p = 0; p < kPanels; ++p) {
                const I32x16 scales = load_pairs(slab + p * kSlab + Slab::kScales, pair);
#pragma GCC unroll 16
                for (int n = 0; n < kTokens; ++n) {
                    const I32x16 shifted = shift_pairs(scales, terms[n].shifts[pair / kApart]);
                    products[p][n] = dot2(products[p][n], pairs(low[p][n], high[p][n]), shifted);
                }
            }
        }

        template <int kPanels>
        CHASKI_INLINE void start(int sub, I32x16 (&sums)[kPanels][kTokens]) const {
#pragma GCC unroll 16
            for (int n = 0; n < kTokens; ++n) {
#pragma GCC unroll 2
                for (int p = 0; p < kPanels; ++p) sums[p][n] = splat(kMinSub == 0 ? terms[n].starts[sub] : 0);
            }
        }

        // If registers can hold the sums of both sub-blocks, the sub-blocks alternate. A product waits for
        // the previous one of its sum, and twice as many sums keep a processor busy that begins two products
        // per cycle.
        template <int kPanels>
        CHASKI_INLINE void add_pair_products(const uint8_t* lines, int first, I32x16 (&low)[kPanels][kTokens],
                                             I32x16 (&high)[kPanels][kTokens]) const {
            const uint8_t* high_lines = lines + kLanes * kSubElements;
            const int8_t* low_values = values + kSubElements * first;
            const int8_t* high_values = low_values + kSubElements * kPairStep<kSubElements>;
            constexpr int kTurn = kHasPairs ? 4 : kSubElements;
#pragma GCC unroll 16
            for (int at = 0; at < kSubElements; at += kTurn) {
                add_products<kTurn, kSlab, kLargestCode>(lines + kLanes * at, low_values + at, kStep, low);
                add_products<kTurn, kSlab, kLargestCode>(high_lines + kLanes * at, high_values + at, kStep,
                                                         high);
            }
        }
    };
};

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

void matmul_quantized(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x,
                      int64_t n, const Output& out, void* scratch, const Variant& variant) {
    const bool is_super = wants_super_blocks(w.type);
    if (n <= kStreamTokens && variant.in_registers) {
        const bool in_pairs = kHasPairs && is_super && variant.in_pairs && n >= kPairedTokens;
        const auto stream = in_pairs               ? stream_super_pairs
                            : is_super             ? stream_super_blocks
                            : has_codebook(w.type) ? stream_of_codebooks()
                                                   : stream_blocks;
        return stream(w, panel_begin, panel_end, x, n, out, scratch, variant);
    }
    const Unpacker& u = unpacker_of(w.type);
    if constexpr (kHasLevels) {
        if (has_levels(w.type)) {
            return multiply_levels(u, w, panel_begin, panel_end, x, n, out, scratch, variant);
        }
    }
    const auto product = is_super && u.min_sub == 16 ? run_product<SuperQuantized<16, 16, 3>>   // Q2_K
                         : is_super && !u.mins       ? run_product<SuperQuantized<16, 0, 63>>   // Q3_K, Q6_K
                         : is_super && u.sub == 16   ? run_product<SuperQuantized<16, 32, 31>>  // Q5_K
                         : is_super                  ? run_product<SuperQuantized<32, 32, 15>>  // Q4_K
                         : u.mins                    ? run_product<Quantized<true, kNarrow>>
                         : u.sub == 16               ? run_product<Quantized<false, kNarrow, 16>>
                         : u.unpack_words != nullptr ? run_product<QuantizedWords>
                         : u.max_code > 127          ? run_product<Quantized<false, kWide>>
                         : u.max_code > kNarrowest   ? run_product<Quantized<false, kNarrow>>
                                                     : run_product<Quantized<false, kNarrowest>>;
    product(u, w, panel_begin, panel_end, x, n, out, scratch, variant);
}

// Few tokens need numbers for each block or for each super-block; the larger count is reserved.
static int64_t stream_scratch_bytes(int64_t k) {
    constexpr int64_t kNumbers = 4 * sizeof(float) * (kSuperElements / 32);
    constexpr int64_t kTerms = sizeof(SuperTerms);
    return kStreamTokens * (k + kSuperElements - 1) / kSuperElements *
           (kTerms > kNumbers ? kTerms : kNumbers);
}

int64_t scratch_bytes_quantized(int64_t k, int64_t n) {
    int64_t product = larger(larger(product_scratch_bytes<Quantized<true, kNarrow>>(n),
                                    product_scratch_bytes<Quantized<false, kNarrow, 16>>(n)),
                             product_scratch_bytes<SuperQuantized<16, 16, 3>>(n));
    if constexpr (kWordsAreFaster) product = larger(product, product_scratch_bytes<QuantizedWords>(n));
    if constexpr (kHasLevels) product = larger(product, level_scratch_bytes(n));
    return larger(stream_scratch_bytes(k), product);
}

#if defined(__AVX512VNNI__)
template <class K>
static void run_tiles(const Unpacker& u, const Matrix& w, int64_t panel_begin, int64_t panel_end,
                      const Activations& x, int64_t n, const Output& out, void* scratch,
                      const Variant& variant) {
    const TileShapes shapes = K::shapes();
    configure_tiles(shapes);
    run_product<K>(u, w, panel_begin, panel_end, x, n, out, scratch, variant);
    release_tiles();
}

void matmul_quantized_amx(const Matrix& w, int64_t panel_begin, int64_t panel_end, const Activations& x,
                          int64_t n, const Output& out, void* scratch, const Variant& variant) {
    const Unpacker& u = unpacker_of(w.type);
    const bool is_super = wants_super_blocks(w.type);
    const bool is_full_tile = n == kTileRows && u.sub == 32;
    if (n < kAmxTokens && !is_full_tile) {
        return matmul_quantized(w, panel_begin, panel_end, x, n, out, scratch, variant);
    }
    const bool is_three = is_super && variant.three_products;
    const auto product = is_three && u.min_sub == 0    ? run_tiles<AmxPieces<0, 3>>
                         : is_three && u.min_sub == 16 ? run_tiles<AmxPieces<16, 3>>
                         : is_three                    ? run_tiles<AmxPieces<32, 3>>
                         : is_super && u.min_sub == 0  ? run_tiles<AmxPieces<0, 2>>
                         : is_super && u.min_sub == 16 ? run_tiles<AmxPieces<16, 2>>
                         : is_super && u.sub == 16     ? run_tiles<AmxPieces<32, 2>>
                         : is_super                    ? run_tiles<AmxSuperQuantized>
                         : u.mins                      ? run_tiles<AmxQuantized<true>>
                         : u.sub == 16                 ? run_tiles<AmxQuantized<false, 16>>
                                                       : run_tiles<AmxQuantized<false>>;
    product(u, w, panel_begin, panel_end, x, n, out, scratch, variant);
}

int64_t scratch_bytes_quantized_amx(int64_t k, int64_t n) {
    const int64_t product = larger(
        larger(product_scratch_bytes<AmxQuantized<true>>(n),
               product_scratch_bytes<AmxQuantized<false, 16>>(n)),
        larger(product_scratch_bytes<AmxSuperQuantized>(n), product_scratch_bytes<AmxPieces<16, 3>>(n)));
    return larger(scratch_bytes_quantized(k, n), product);
}
#endif

}  // namespace chaski::CHASKI_ISA
