// Scales and entries of the types with codebooks (codebooks.h). The levels of 8 or 4 elements must be an
// entry.
//
// The search for a scale ignores the codebook: a lane is a scale, and each element takes its nearest level.
// The entries are then the best ones for the scale that is stored: all entries are compared, a lane is an
// entry.
#include <cmath>

#include "codebooks.h"
#include "entry_points.h"
#include "vector_math.h"

namespace chaski::CHASKI_ISA {
namespace {

// Elements of the same size have the same gain with each level. The highest level is tried first and kept,
// because most codebooks have an entry of it alone.
constexpr float kSameFit = 1.0f + 1e-5f;
constexpr float kNoSize = 1e-15f, kDelta = 0.125f, kOneSize = 0.5f;
// The scales for which entries are compared, over the best one without a codebook.
constexpr float kTriedScales[] = {1.0f, 0.91f, 1.11f, 0.83f};
constexpr int kMostElements = 32, kMostGroups = 4, kMostLevels = 8, kScales = 32;

// A codebook: entries are words of levels, 2 bits each for groups of 8 elements, 3 bits for groups of 4.
struct EntryBook {
    const uint16_t* words;
    int entries, group, levels;
    float values[kMostLevels];
    bool is_signed;   // the entries are magnitudes
    bool is_even;     // the number of negative signs of 8 elements is even
    float low, high;  // the levels of the largest magnitude that are tried, as shares of the highest one
    int tries = 1;    // of scales with entries
    bool is_lowest_alone = false;  // the only entry of one level has the lowest
};

EntryBook book_of(DType type) {
    switch (type) {
        case DType::IQ2_XXS:
            return {kIQ2_XXSWords, 256, 8, 3, {8, 25, 43}, true, true, 0.75f, 1.5f, 1, true};
        case DType::IQ2_XS:
            return {kIQ2_XSWords, 512, 8, 3, {8, 25, 43}, true, true, 0.75f, 1.5f};
        case DType::IQ2_S:
            return {kIQ2_SWords, 1024, 8, 3, {8, 25, 43}, true, false, 0.75f, 1.5f};
        case DType::IQ3_XXS:
            return {kIQ3_XXSWords, 256, 4, 8, {4, 12, 20, 28, 36, 44, 52, 62}, true, true, 0.75f, 1.3f, 4};
        case DType::IQ3_S:
            return {kIQ3_SWords, 512, 4, 8, {1, 3, 5, 7, 9, 11, 13, 15}, true, false, 0.75f, 1.3f};
        default:  // IQ1_S and IQ1_M, whose levels are moved by a delta
            return {kIQ1_SWords, 2048, 8, 3, {-1, 0, 1}, false, false, 0.7f, 3.8f};
    }
}

// look_up: numbers of a table by indices of kBits, 3 or 4.
#if defined(__AVX512F__)
template <int kBits>
CHASKI_INLINE F32x16 look_up(const float* table, I32x16 index) {
    return {_mm512_permutexvar_ps(index.v, _mm512_loadu_ps(table))};
}
// x + step where x's lane of `at` is above the middle.
CHASKI_INLINE F32x16 step_up(F32x16 x, F32x16 at, float middle, float step) {
    const __mmask16 above = _mm512_cmp_ps_mask(at.v, _mm512_set1_ps(middle), _CMP_GT_OQ);
    return {_mm512_mask_add_ps(x.v, above, x.v, _mm512_set1_ps(step))};
}
CHASKI_INLINE void keep_less(F32x16 error, I32x16 entry, F32x16& least, I32x16& best) {
    const __mmask16 less = _mm512_cmp_ps_mask(error.v, least.v, _CMP_LT_OQ);
    least.v = _mm512_mask_mov_ps(least.v, less, error.v);
    best.v = _mm512_mask_mov_epi32(best.v, less, entry.v);
}
// The smallest error of all lanes, and of its entries the first.
CHASKI_INLINE void least_of_lanes(F32x16 errors, I32x16 entries, float& error, int32_t& entry) {
    error = _mm512_reduce_min_ps(errors.v);
    const __mmask16 is_least = _mm512_cmp_ps_mask(errors.v, _mm512_set1_ps(error), _CMP_EQ_OQ);
    entry = _mm512_mask_reduce_min_epi32(is_least, entries.v);
}
#elif defined(__AVX2__)
template <int kBits>
CHASKI_INLINE __m256 look_up_half(const float* table, __m256i index) {
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), index);
    if constexpr (kBits == 3) return low;
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), index);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}
template <int kBits>
CHASKI_INLINE F32x16 look_up(const float* table, I32x16 index) {
    return {look_up_half<kBits>(table, index.lo), look_up_half<kBits>(table, index.hi)};
}
CHASKI_INLINE __m256 step_up_half(__m256 x, __m256 at, float middle, float step) {
    const __m256 above = _mm256_cmp_ps(at, _mm256_set1_ps(middle), _CMP_GT_OQ);
    return _mm256_add_ps(x, _mm256_and_ps(above, _mm256_set1_ps(step)));
}
CHASKI_INLINE F32x16 step_up(F32x16 x, F32x16 at, float middle, float step) {
    return {step_up_half(x.lo, at.lo, middle, step), step_up_half(x.hi, at.hi, middle, step)};
}
CHASKI_INLINE void keep_less_half(__m256 error, __m256i entry, __m256& least, __m256i& best) {
    const __m256 less = _mm256_cmp_ps(error, least, _CMP_LT_OQ);
    least = _mm256_blendv_ps(least, error, less);
    best = _mm256_blendv_epi8(best, entry, _mm256_castps_si256(less));
}
CHASKI_INLINE void keep_less(F32x16 error, I32x16 entry, F32x16& least, I32x16& best) {
    keep_less_half(error.lo, entry.lo, least.lo, best.lo);
    keep_less_half(error.hi, entry.hi, least.hi, best.hi);
}
#else
template <int kBits>
CHASKI_INLINE F32x16 look_up(const float* table, I32x16 index) {
    int32_t places[kLanes];
    float found[kLanes];
    store_i32(places, index);
    for (int r = 0; r < kLanes; ++r) found[r] = table[places[r] & 15];
    return load_f32(found);
}
CHASKI_INLINE F32x16 step_up(F32x16 x, F32x16 at, float middle, float step) {
    float sum[kLanes], places[kLanes];
    store_f32(sum, x);
    store_f32(places, at);
    for (int r = 0; r < kLanes; ++r) sum[r] = places[r] > middle ? sum[r] + step : sum[r];
    return load_f32(sum);
}
CHASKI_INLINE void keep_less(F32x16 error, I32x16 entry, F32x16& least, I32x16& best) {
    float errors[kLanes], lowest[kLanes];
    int32_t entries[kLanes], chosen[kLanes];
    store_f32(errors, error);
    store_f32(lowest, least);
    store_i32(entries, entry);
    store_i32(chosen, best);
    for (int r = 0; r < kLanes; ++r) {
        const bool is_less = errors[r] < lowest[r];
        lowest[r] = is_less ? errors[r] : lowest[r];
        chosen[r] = is_less ? entries[r] : chosen[r];
    }
    least = load_f32(lowest);
    best = load_i32(chosen);
}
#endif
#if !defined(__AVX512F__)
CHASKI_INLINE void least_of_lanes(F32x16 errors, I32x16 entries, float& error, int32_t& entry) {
    float lowest[kLanes];
    int32_t chosen[kLanes];
    store_f32(lowest, errors);
    store_i32(chosen, entries);
    int at = 0;
    for (int r = 1; r < kLanes; ++r) {
        const bool is_better = lowest[r] < lowest[at] || (lowest[r] == lowest[at] && chosen[r] < chosen[at]);
        at = is_better ? r : at;
    }
    error = lowest[at];
    entry = chosen[at];
}
#endif

// A sub-block as its entries see it: with magnitudes if the signs are stored elsewhere, one bit each in
// `signs`. If the number of negative signs must be even, the element that matters least takes the wrong one.
struct Prepared {
    float x[kMostElements];
    uint8_t signs[kMostGroups];
    float largest, smallest;
};

Prepared prepare(const EntryBook& book, const float* x, const float* weights, int elements) {
    Prepared found{};
    found.smallest = INFINITY;
    for (int begin = 0; begin < elements; begin += 8) {
        uint8_t& signs = found.signs[begin / 8];
        int least = begin;
        float cost = INFINITY;
        for (int i = begin; i < begin + 8; ++i) {
            const bool is_negative = book.is_signed && x[i] < 0.0f;
            found.x[i] = is_negative ? -x[i] : x[i];
            if (is_negative) signs = static_cast<uint8_t>(signs | 1 << (i - begin));
            const float size = std::fabs(x[i]);
            found.largest = size > found.largest ? size : found.largest;
            found.smallest = size < found.smallest ? size : found.smallest;
            if (weights[i] * x[i] * x[i] < cost) {
                cost = weights[i] * x[i] * x[i];
                least = i;
            }
        }
        if (book.is_even && __builtin_popcount(signs) % 2 != 0) {
            signs = static_cast<uint8_t>(signs ^ 1 << (least - begin));
            found.x[least] = -found.x[least];
        }
    }
    return found;
}

// The best scale for the levels that elements have with each of the tried scales, if every level is possible.
struct Fitted {
    float scale = 0.0f, gain = 0.0f;
};

void fit_levels(const EntryBook& book, const Prepared& block, const float* weights, int elements, float delta,
                Fitted& best) {
    if (block.largest <= kNoSize) return;
    float middles[kMostLevels], steps[kMostLevels];
    for (int i = 0; i + 1 < book.levels; ++i) {
        middles[i] = 0.5f * (book.values[i] + book.values[i + 1]) + delta;
        steps[i] = book.values[i + 1] - book.values[i];
    }
    const float top = book.values[book.levels - 1], inverse = top / block.largest;
    for (int begin = 0; begin < kScales; begin += kLanes) {
        float tried[kLanes], sums[kLanes], products[kLanes];
        for (int r = 0; r < kLanes; ++r) {
            const float share = static_cast<float>(begin + r) / (kScales - 1);
            tried[r] = inverse * (book.high - (book.high - book.low) * share);
        }
        const F32x16 by = load_f32(tried);
        F32x16 ll = splat(0.0f), xl = ll;
        for (int i = 0; i < elements; ++i) {
            const F32x16 at = splat(block.x[i]) * by;
            F32x16 level = splat(book.values[0] + delta);
            for (int k = 0; k + 1 < book.levels; ++k) level = step_up(level, at, middles[k], steps[k]);
            const F32x16 weighted = splat(weights[i]) * level;
            ll = ll + weighted * level;
            xl = xl + weighted * splat(block.x[i]);
        }
        store_f32(sums, ll);
        store_f32(products, xl);
        for (int r = 0; r < kLanes; ++r) {
            const float scale = sums[r] > 0.0f ? products[r] / sums[r] : 0.0f, gain = scale * products[r];
            if (scale > 0.0f && gain > kSameFit * best.gain) best = {scale, gain};
        }
    }
}

// The errors of all possible values of four bits of a word (two elements), or of three bits (one element).
using Tables = float[kMostGroups * 2][4][16];

void fill_tables(const EntryBook& book, const Prepared& block, const float* weights, int elements,
                 float scale, float delta, Tables& tables) {
    float levels[kMostLevels];
    for (int k = 0; k < kMostLevels; ++k) levels[k] = scale * (book.values[k] + delta);
    const auto write_errors = [&](int i, float* errors, int count) __attribute__((always_inline)) {
        for (int k = 0; k < count; ++k) {
            const float rest = block.x[i] - levels[k];
            errors[k] = weights[i] * (rest * rest);
        }
    };
    for (int i = 0; i < elements; i += book.group == 8 ? 2 : 1) {
        if (book.group == 4) {
            write_errors(i, tables[i / 4][i % 4], 8);
            continue;
        }
        float first[4], second[4], *table = tables[i / 8][i % 8 / 2];
        write_errors(i, first, 4);
        write_errors(i + 1, second, 4);
        for (int high = 0; high < 4; ++high) {
            for (int low = 0; low < 4; ++low) table[4 * high + low] = first[low] + second[high];
        }
    }
}

// The entries with the smallest errors for each group of a sub-block, and those errors. Of equal ones the
// first.
template <int kBits, int kGroups>
void nearest_entries(const EntryBook& book, const Tables& tables, int32_t* entries, float* errors) {
    alignas(64) static constexpr int32_t kNumbers[kLanes] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                             8, 9, 10, 11, 12, 13, 14, 15};
    F32x16 least[kGroups];
    I32x16 best[kGroups], number = load_i32(kNumbers);
    for (int g = 0; g < kGroups; ++g) {
        least[g] = splat(INFINITY);
        best[g] = splat(0);
    }
    for (int e = 0; e < book.entries; e += kLanes) {
        const I32x16 word = load_u16(book.words + e);
        const I32x16 fields[4] = {bits<0, kBits>(word), bits<kBits, kBits>(word),
                                  bits<2 * kBits, kBits>(word), bits<3 * kBits, kBits>(word)};
        for (int g = 0; g < kGroups; ++g) {
            const auto part = [&](int i) __attribute__((always_inline)) {
                return look_up<kBits>(tables[g][i], fields[i]);
            };
            const F32x16 error = (part(0) + part(1)) + (part(2) + part(3));
            keep_less(error, number, least[g], best[g]);
        }
        number = number + splat(kLanes);
    }
    for (int g = 0; g < kGroups; ++g) {
        least_of_lanes(least[g], best[g], errors[g], entries[g]);
    }
}

struct Chosen {
    int32_t entries[kMostGroups * 2];
    float errors[kMostGroups * 2];
    float total;
};

Chosen choose(const EntryBook& book, const Prepared& block, const float* weights, int elements, float scale,
              float delta) {
    Tables tables;
    Chosen found;
    const int groups = elements / book.group;
    fill_tables(book, block, weights, elements, scale, delta, tables);
    if (book.group == 8) {
        if (groups == 4) nearest_entries<4, 4>(book, tables, found.entries, found.errors);
        if (groups == 2) nearest_entries<4, 2>(book, tables, found.entries, found.errors);
    } else {
        nearest_entries<3, 8>(book, tables, found.entries, found.errors);
    }
    found.total = 0.0f;
    for (int g = 0; g < groups; ++g) found.total += found.errors[g];
    return found;
}

// The sums that the best scale for given entries follows from.
struct EntrySums {
    float ll = 0.0f, xl = 0.0f;
};

// negative: for each group, whether its delta is negative; null without deltas.
EntrySums sum_up(const EntryBook& book, const Prepared& block, const float* weights, int elements,
                 const Chosen& chosen, const uint8_t* negative) {
    EntrySums sums;
    const int bits = book.group == 8 ? 2 : 3;
    for (int g = 0; g < elements / book.group; ++g) {
        const int word = book.words[chosen.entries[g]];
        const float delta = negative == nullptr ? 0.0f : negative[g] != 0 ? -kDelta : kDelta;
        for (int i = 0; i < book.group; ++i) {
            const int at = g * book.group + i;
            const float level = book.values[word >> (bits * i) & ((1 << bits) - 1)] + delta;
            sums.ll += weights[at] * level * level;
            sums.xl += weights[at] * level * block.x[at];
        }
    }
    return sums;
}

// Takes the entries with a negative delta (1 in `deltas`) where they are better: in each group, or in all.
void choose_deltas(bool is_each, int groups, const Chosen& other, Chosen& chosen, uint8_t* deltas) {
    const bool is_better_together = other.total < chosen.total;
    chosen.total = 0.0f;
    for (int g = 0; g < groups; ++g) {
        const bool is_better = is_each ? other.errors[g] < chosen.errors[g] : is_better_together;
        if (is_better) chosen.entries[g] = other.entries[g];
        if (is_better) chosen.errors[g] = other.errors[g];
        chosen.total += chosen.errors[g];
        deltas[g] = is_better ? 1 : 0;
    }
}

// The best scale near this one for the entries that it chooses: entries lack some levels, which moves it. For
// elements of one size, the only entry of one level may be the best one.
Fitted fit_entries(const EntryBook& book, const Prepared& block, const float* weights, int elements,
                   float near) {
    Fitted kept;
    const auto try_scale = [&](float tried) {
        const Chosen chosen = choose(book, block, weights, elements, tried, 0.0f);
        const EntrySums sums = sum_up(book, block, weights, elements, chosen, nullptr);
        const float scale = sums.ll > 0.0f ? sums.xl / sums.ll : 0.0f, gain = scale * sums.xl;
        if (scale > 0.0f && gain > kept.gain) kept = {scale, gain};
    };
    for (int i = 0; i < book.tries; ++i) try_scale(near * kTriedScales[i]);
    if (book.is_lowest_alone && block.smallest > kOneSize * block.largest)
        try_scale(block.largest / book.values[0]);
    return kept;
}

}  // namespace

void fit_codebook(DType type, const SubBlocks& x, float* scales) {
    const EntryBook book = book_of(type);
    for (int64_t i = 0; i < x.count; ++i) {
        const float* weights = x.weights + x.elements * i;
        const Prepared block = prepare(book, x.values + x.elements * i, weights, x.elements);
        Fitted best;
        if (book.is_signed) {
            fit_levels(book, block, weights, x.elements, 0.0f, best);
            best = fit_entries(book, block, weights, x.elements, best.scale);
        } else {
            for (float delta : {kDelta, -kDelta}) fit_levels(book, block, weights, x.elements, delta, best);
        }
        scales[i] = best.scale;
    }
}

void choose_entries(DType type, const SubBlocks& x, const float* scales, int64_t num_scales,
                    const ChosenEntries& out) {
    const EntryBook book = book_of(type);
    const int groups = x.elements / book.group, octets = x.elements / 8;
    for (int64_t i = 0; i < x.count; ++i) {
        const float* weights = x.weights + x.elements * i;
        const Prepared block = prepare(book, x.values + x.elements * i, weights, x.elements);
        Chosen best{};
        uint8_t* signs = out.signs + octets * i;
        for (int64_t at = 0; at < num_scales; ++at) {
            const float scale = scales[at * x.count + i];
            uint8_t deltas[kMostGroups * 2] = {};
            Chosen chosen = choose(book, block, weights, x.elements, scale, book.is_signed ? 0.0f : kDelta);
            if (!book.is_signed) {
                const Chosen other = choose(book, block, weights, x.elements, scale, -kDelta);
                choose_deltas(type == DType::IQ1_M, groups, other, chosen, deltas);
            }
            if (at != 0 && chosen.total >= best.total) continue;
            best = chosen;
            out.choices[i] = static_cast<uint8_t>(at);
            for (int octet = 0; octet < octets; ++octet)
                signs[octet] = book.is_signed ? block.signs[octet] : deltas[octet];
        }
        for (int g = 0; g < groups; ++g) out.entries[groups * i + g] = static_cast<uint16_t>(best.entries[g]);
        const EntrySums sums =
            sum_up(book, block, weights, x.elements, best, book.is_signed ? nullptr : signs);
        out.sums[kEntrySums * i] = sums.ll;
        out.sums[kEntrySums * i + 1] = sums.xl;
    }
}

}  // namespace chaski::CHASKI_ISA
