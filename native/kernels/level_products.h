// Products of many tokens with signed levels, for AVX2 without VNNI: sums of four products of bytes take two
// multiplications, one of which widens sums of pairs, and several pairs are added before they are widened.
//
// The instruction multiplies unsigned bytes by signed ones. Codes without signs are up to twice as large as
// levels, so fewer pairs fit 16 bits: one of IQ2 and IQ3_XXS. So the activations become unsigned, x + 128,
// and levels keep their signs. What the 128 adds to a sum depends only on the levels, so the slab has its
// negative, with which the sum begins. Sums of 16 bits may wrap on the way, but the last one fits and is
// exact.
//
//   block of 32   |levels: 8 lines|starts of groups of lines, 16 bits: 64 bytes each|scales of sub-blocks|
#pragma once

#include "blocks.h"
#include "coefficients.h"
#include "product.h"

namespace chaski::CHASKI_ISA {

#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
inline constexpr bool kHasLevels = true;

// The slab of levels of up to kLevel in sub-blocks of kSub.
template <int kLevel, int kSub>
struct LevelSlab {
    static constexpr int kLines = kSub / 4;                    // of a sub-block
    static constexpr int kGroup = 32767 / (2 * 127 * kLevel);  // lines whose pairs fit 16 bits
    static constexpr int kGroups = (kLines + kGroup - 1) / kGroup;
    static constexpr int kStarts = kLanes * 32;
    static constexpr int kScales = kStarts + 32 / kSub * kGroups * 64;
    static constexpr int kBytes = kScales + 32 / kSub * 64;
    static_assert(2 * 255 * kLevel <= 32767);
};

// The largest magnitudes of levels. IQ1_S shares the products of IQ3_S: with both, a group has all lines of
// a sub-block.
constexpr int kLevelIQ2 = IQ2_S::kOffset, kLevelIQ3_XXS = IQ3_XXS::kOffset, kLevelIQ3_S = IQ3_S::kOffset;
static_assert(LevelSlab<IQ1_S::kOffset, 32>::kGroups == 1 && LevelSlab<kLevelIQ3_S, 32>::kGroups == 1);

template <class Format>
static void unpack_levels(const uint8_t* __restrict panel, int64_t elements, uint8_t* __restrict slab) {
    constexpr int kSubs = 32 / Format::kSub;
    constexpr int kInBytes = 127 / Format::kOffset;  // levels whose sum fits 8 bits
    using Slab = LevelSlab<Format::kOffset, Format::kSub>;
    for (int64_t at = 0; at < elements; at += Format::kElements, panel += Format::kBytes) {
        const Format block{{panel}};
        unroll<Format::kElements / Format::kSub>([&](auto s) __attribute__((always_inline)) {
            constexpr int kOwn = s % kSubs;
            uint8_t* lines = slab + 64 * Slab::kLines * kOwn;
            uint8_t* starts = slab + Slab::kStarts + 64 * Slab::kGroups * kOwn;
            const __m256i ones = _mm256_set1_epi8(1), offset = _mm256_set1_epi8(Format::kOffset);
            __m256i low{}, high{};
            U8x64 sums{};
            unroll<Slab::kLines>([&](auto i) __attribute__((always_inline)) {
                constexpr int kPlace = i % Slab::kGroup;
                constexpr bool kIsLast = kPlace + 1 == Slab::kGroup || i + 1 == Slab::kLines;
                const U8x64 codes = block.template codes<s.value, i.value>();
                const U8x64 levels = {_mm256_sub_epi8(codes.lo, offset), _mm256_sub_epi8(codes.hi, offset)};
                store_u8(lines + 64 * i, levels);
                sums = kPlace % kInBytes == 0
                           ? levels
                           : U8x64{_mm256_add_epi8(sums.lo, levels.lo), _mm256_add_epi8(sums.hi, levels.hi)};
                if constexpr (kIsLast || (kPlace + 1) % kInBytes == 0) {
                    low = _mm256_sub_epi16(low, _mm256_maddubs_epi16(ones, sums.lo));
                    high = _mm256_sub_epi16(high, _mm256_maddubs_epi16(ones, sums.hi));
                }
                if constexpr (kIsLast) {
                    store_u8(starts + 64 * (i / Slab::kGroup),
                             {_mm256_slli_epi16(low, 7), _mm256_slli_epi16(high, 7)});
                    low = high = _mm256_setzero_si256();
                }
            });
            store_f32(reinterpret_cast<float*>(slab + Slab::kScales + 64 * kOwn),
                      block.template scale<s.value>());
            if constexpr (kOwn + 1 == kSubs) slab += Slab::kBytes;
        });
    }
}

// Without IQ1_M, which would lose as much with eight tokens as it gains with many.
using LevelFormats = FormatList<IQ1_S, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S>;

template <class... Formats>
static Unpack unpack_of_levels(DType type, FormatList<Formats...>) {
    Unpack found = nullptr;
    ((Formats::kType == type ? void(found = unpack_levels<Formats>) : void()), ...);
    return found;
}

template <int kLevel, int kSubElements>
struct QuantizedLevels {
    using Slab = LevelSlab<kLevel, kSubElements>;
    static constexpr int kStep = 256;
    static constexpr int P = 1, N = 4;
    static constexpr int kSmallest = smallest_tile(N, kUnpackedTokens);
    static constexpr int kGroup = kGroupPanels, kFewPanels = P;
    static Unpack unpack_of(const Unpacker& u) { return unpack_of_levels(u.type, LevelFormats()); }
    static constexpr int kSub = 32;
    static constexpr int kSlab = kStep / kSub * Slab::kBytes;

    template <int kTokens>
    struct Tokens {
        Coefficients<false, kStep / kSub, kTokens, false> c;
        alignas(64) uint8_t values[kTokens * kStep];  // plus 128

        explicit Tokens(const TileInput& in) {
            c.fill(in.x, in.k, in.token, kTokens, in.at, in.elements / kSub, 0);
            for (int n = 0; n < kTokens; ++n) {
                const int8_t* own = in.x.values + in.first_of(n);
                for (int i = 0; i < in.elements; ++i)
                    values[n * kStep + i] = static_cast<uint8_t>(own[i] + 128);
            }
        }

        template <int kPanels, class Before>
        CHASKI_INLINE void add(const uint8_t* slab, int elements, const Before& before,
                               Sums<kPanels, kTokens>& y, Prefetch<kPanels>& prefetch) const {
            static_assert(kPanels == 1);
            y.take(before);
            for (int b = 0; b < elements / kSub; ++b) {
                prefetch.fetch();
                unroll<32 / kSubElements>([&](auto s) __attribute__((always_inline)) {
                    add_sub_block<s.value>(slab + b * Slab::kBytes, b, y.v[0]);
                });
            }
        }

        template <int S>
        CHASKI_INLINE void add_sub_block(const uint8_t* slab, int b, F32x16 (&y)[kTokens]) const {
            constexpr int kFirst = Slab::kLines * S;
            const __m256i ones = _mm256_set1_epi16(1);
            __m256i low[kTokens], high[kTokens];
            unroll<Slab::kGroups>([&](auto g) __attribute__((always_inline)) {
                constexpr int kBegin = g * Slab::kGroup;
                constexpr int kCount =
                    Slab::kLines - kBegin < Slab::kGroup ? Slab::kLines - kBegin : Slab::kGroup;
                const uint8_t* start = slab + Slab::kStarts + 64 * (Slab::kGroups * S + g);
                __m256i low_pairs[kTokens], high_pairs[kTokens];
                unroll<kCount>([&](auto i) __attribute__((always_inline)) {
                    const U8x64 levels = load_u8(slab + 64 * (kFirst + kBegin + i));
#pragma GCC unroll 16
                    for (int n = 0; n < kTokens; ++n) {
                        const __m256i x = _mm256_set1_epi32(
                            read<int32_t>(values + n * kStep + kSub * b + 4 * (kFirst + kBegin + i)));
                        low_pairs[n] = _mm256_add_epi16(_mm256_maddubs_epi16(x, levels.lo),
                                                        i == 0 ? load_256(start, 0) : low_pairs[n]);
                        high_pairs[n] = _mm256_add_epi16(_mm256_maddubs_epi16(x, levels.hi),
                                                         i == 0 ? load_256(start, 1) : high_pairs[n]);
                    }
                });
#pragma GCC unroll 16
                for (int n = 0; n < kTokens; ++n) {
                    const __m256i low_sum = _mm256_madd_epi16(low_pairs[n], ones);
                    const __m256i high_sum = _mm256_madd_epi16(high_pairs[n], ones);
                    low[n] = g == 0 ? low_sum : _mm256_add_epi32(low[n], low_sum);
                    high[n] = g == 0 ? high_sum : _mm256_add_epi32(high[n], high_sum);
                }
            });
            const F32x16 scale = load_f32(reinterpret_cast<const float*>(slab + Slab::kScales + 64 * S));
#pragma GCC unroll 16
            for (int n = 0; n < kTokens; ++n) {
                y[n] = fma(to_f32(I32x16{low[n], high[n]}), scale * splat(c.scale[n][b]), y[n]);
            }
        }
    };
};

static bool has_levels(DType type) { return unpack_of_levels(type, LevelFormats()) != nullptr; }

static void multiply_levels(const Unpacker& u, const Matrix& w, int64_t panel_begin, int64_t panel_end,
                            const Activations& x, int64_t n, const Output& out, void* scratch,
                            const Variant& variant) {
    const auto product = u.sub == 16                 ? run_product<QuantizedLevels<kLevelIQ2, 16>>
                         : u.offset == kLevelIQ2     ? run_product<QuantizedLevels<kLevelIQ2, 32>>
                         : u.offset == kLevelIQ3_XXS ? run_product<QuantizedLevels<kLevelIQ3_XXS, 32>>
                                                     : run_product<QuantizedLevels<kLevelIQ3_S, 32>>;
    product(u, w, panel_begin, panel_end, x, n, out, scratch, variant);
}

// The scratch memory of the kernel whose slab is the largest.
static int64_t level_scratch_bytes(int64_t n) {
    return product_scratch_bytes<QuantizedLevels<kLevelIQ2, 16>>(n);
}
#else
inline constexpr bool kHasLevels = false;
bool has_levels(DType type);
void multiply_levels(const Unpacker& u, const Matrix& w, int64_t panel_begin, int64_t panel_end,
                     const Activations& x, int64_t n, const Output& out, void* scratch,
                     const Variant& variant);
int64_t level_scratch_bytes(int64_t n);
#endif

}  // namespace chaski::CHASKI_ISA
