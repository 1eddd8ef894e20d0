// Scales and entries of the types with codebooks (codebooks.h). The levels of 8 or 4 elements must be an
// entry.
//
// The search for a scale ignores the codebook: a lane is a scale, and each element takes its nearest level.
// The entries are then the best ones for the scale that is stored.
#include <cmath>

#include "codebooks.h"
#include "entry_points.h"
#include "vector_math.h"

namespace chaski::CHASKI_ISA {
namespace {

// Elements of the same size have the same gain with each level. The highest level is tried first and kept,
// because most codebooks have an entry of it alone.
constexpr float kSameFit = 1.0f + 1e-5f;
constexpr float kNoSize = 1e-15f, kDelta = 0.125f, kOneSize = 0.5f, kUsual = 6.0f;
// The scales for which entries are compared, over the best one without a codebook.
constexpr float kTriedScales[] = {1.0f, 0.91f, 1.11f, 0.83f};
constexpr int kMostElements = 32, kMostGroups = 4, kMostLevels = 8, kMostEntries = 2048, kScales = 32;

// A codebook: entries are words of levels, 2 bits each for groups of 8 elements, 3 bits for groups of 4.
struct EntryBook {
    const uint16_t* words;
    int entries, group, levels;
    float values[kMostLevels];
    bool is_signed;   // the entries are magnitudes
    bool is_even;     // the number of negative signs of 8 elements is even
    float low, high;  // the levels of the largest magnitude that are tried, as shares of the highest one
    int tries = 1;    // of scales with entries
    bool is_lowest_alone = false;                      // the only entry of one level has the lowest
    alignas(64) uint8_t fields[4][kMostEntries] = {};  // four bits of a word (two elements), or three (one)
};

EntryBook without_fields(DType type) {
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

EntryBook book_of(DType type) {
    EntryBook book = without_fields(type);
    const int bits = book.group == 8 ? 4 : 3;
    for (int i = 0; i < 4; ++i) {
        for (int e = 0; e < book.entries; ++e)
            book.fields[i][e] = static_cast<uint8_t>(book.words[e] >> (bits * i) & ((1 << bits) - 1));
    }
    return book;
}

// step_up: x + step where x's lane of `at` is above the middle.
// Of 64 bytes: sums, 255 at most; the smaller ones; and a bit for each byte that is at most `top`.
#if defined(__AVX512F__)
CHASKI_INLINE F32x16 step_up(F32x16 x, F32x16 at, float middle, float step) {
    const __mmask16 above = _mm512_cmp_ps_mask(at.v, _mm512_set1_ps(middle), _CMP_GT_OQ);
    return {_mm512_mask_add_ps(x.v, above, x.v, _mm512_set1_ps(step))};
}
CHASKI_INLINE U8x64 add_saturated(U8x64 a, U8x64 b) { return {_mm512_adds_epu8(a.v, b.v)}; }
CHASKI_INLINE U8x64 least_bytes(U8x64 a, U8x64 b) { return {_mm512_min_epu8(a.v, b.v)}; }
CHASKI_INLINE uint64_t at_most(U8x64 a, uint8_t top) {
    return _mm512_cmple_epu8_mask(a.v, _mm512_set1_epi8(static_cast<char>(top)));
}
#elif defined(__AVX2__)
CHASKI_INLINE __m256 step_up_half(__m256 x, __m256 at, float middle, float step) {
    const __m256 above = _mm256_cmp_ps(at, _mm256_set1_ps(middle), _CMP_GT_OQ);
    return _mm256_add_ps(x, _mm256_and_ps(above, _mm256_set1_ps(step)));
}
CHASKI_INLINE F32x16 step_up(F32x16 x, F32x16 at, float middle, float step) {
    return {step_up_half(x.lo, at.lo, middle, step), step_up_half(x.hi, at.hi, middle, step)};
}
CHASKI_INLINE U8x64 add_saturated(U8x64 a, U8x64 b) {
    return {_mm256_adds_epu8(a.lo, b.lo), _mm256_adds_epu8(a.hi, b.hi)};
}
CHASKI_INLINE U8x64 least_bytes(U8x64 a, U8x64 b) {
    return {_mm256_min_epu8(a.lo, b.lo), _mm256_min_epu8(a.hi, b.hi)};
}
CHASKI_INLINE uint64_t at_most(U8x64 a, uint8_t top) {
    const __m256i tops = _mm256_set1_epi8(static_cast<char>(top));
    const auto half = [&](__m256i x) __attribute__((always_inline)) {
        return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_min_epu8(x, tops), x)));
    };
    return half(a.lo) | uint64_t{half(a.hi)} << 32;
}
#else
CHASKI_INLINE F32x16 step_up(F32x16 x, F32x16 at, float middle, float step) {
    float sum[kLanes], places[kLanes];
    store_f32(sum, x);
    store_f32(places, at);
    for (int r = 0; r < kLanes; ++r) sum[r] = places[r] > middle ? sum[r] + step : sum[r];
    return load_f32(sum);
}
template <class F>
CHASKI_INLINE U8x64 each_byte(U8x64 a, U8x64 b, const F& of) {
    uint8_t x[64], y[64];
    store_u8(x, a);
    store_u8(y, b);
    for (int r = 0; r < 64; ++r) x[r] = static_cast<uint8_t>(of(x[r], y[r]));
    return load_u8(x);
}
CHASKI_INLINE U8x64 add_saturated(U8x64 a, U8x64 b) {
    return each_byte(a, b, [](int x, int y) { return x + y < 255 ? x + y : 255; });
}
CHASKI_INLINE U8x64 least_bytes(U8x64 a, U8x64 b) {
    return each_byte(a, b, [](int x, int y) { return x < y ? x : y; });
}
CHASKI_INLINE uint64_t at_most(U8x64 a, uint8_t top) {
    uint8_t x[64];
    store_u8(x, a);
    uint64_t found = 0;
    for (int r = 0; r < 64; ++r) found |= uint64_t{x[r] <= top} << r;
    return found;
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
    // The levels of the first and of the second element for each value of four bits.
    float first[kLanes], second[kLanes];
    for (int k = 0; k < kLanes; ++k) {
        first[k] = scale * (book.values[book.group == 8 ? k % 4 : k % 8] + delta);
        second[k] = scale * (book.values[k / 4] + delta);
    }
    const auto errors = [&](int i, const float* levels) __attribute__((always_inline)) {
        const F32x16 rest = splat(block.x[i]) - load_f32(levels);
        return splat(weights[i]) * (rest * rest);
    };
    if (book.group == 8) {
        for (int i = 0; i < elements; i += 2)
            store_f32(tables[i / 8][i % 8 / 2], errors(i, first) + errors(i + 1, second));
    } else {
        for (int i = 0; i < elements; ++i) store_f32(tables[i / 4][i % 4], errors(i, first));
    }
}

// A search for the entry with the smallest error. The four parts of each entry's error are rounded down to
// multiples of a unit and added in bytes. Only entries whose sums are near the smallest one, one to three on
// average, are compared exactly.
class EntrySearch {
   public:
    EntrySearch(const EntryBook& book, const float (&tables)[4][16]) : book_(book), tables_(tables) {}

    float error_of(int entry) const {
        const auto part = [&](int i)
                              __attribute__((always_inline)) { return tables_[i][book_.fields[i][entry]]; };
        return (part(0) + part(1)) + (part(2) + part(3));
    }

    // The first entry with the smallest error. near: any entry; the smaller its error, the finer the unit.
    // usual: an error that the entry rarely exceeds, which makes the unit finer.
    int32_t nearest(int32_t near, float usual, float& error) {
        const float most = error_of(near);
        uint8_t least = add_whole_parts(usual < most ? usual : most);
        if (least == kFull) least = add_whole_parts(most);
        if (least < kCoarse) least = add_whole_parts(error_of(first(least)));
        return first_of(static_cast<uint8_t>(least < kFull - kParts ? least + kParts : kFull), error);
    }

   private:
    // An exact error is less than four units above the sum of its whole parts, unless that is full.
    static constexpr int kParts = 4, kTop = 250, kFull = 255, kCoarse = 16, kAtOnce = 64;
    static constexpr float kLeastError = 1e-36f;

    // Adds whole parts in a unit with which an error of this size is kTop -> the smallest sum.
    uint8_t add_whole_parts(float error) {
        const F32x16 per_unit = splat(kTop / (error > kLeastError ? error : kLeastError));
        alignas(64) uint8_t whole[kParts][16];
        for (int i = 0; i < kParts; ++i)
            store_bytes(whole[i], truncate_to_i32(min(load_f32(tables_[i]) * per_unit, splat(255.0f))));
        U8x64 least = as_bytes(splat(-1));
        for (int e = 0; e < book_.entries; e += kAtOnce) {
            const auto part = [&](int i) __attribute__((always_inline)) {
                return lookup(whole[i], load_u8(book_.fields[i] + e));
            };
            const U8x64 sum = add_saturated(add_saturated(part(0), part(1)), add_saturated(part(2), part(3)));
            store_u8(sums_ + e, sum);
            least = least_bytes(least, sum);
        }
        uint8_t each[kAtOnce], smallest = kFull;
        store_u8(each, least);
        for (const uint8_t one : each) smallest = one < smallest ? one : smallest;
        return smallest;
    }

    int first(uint8_t sum) const {
        int e = 0;
        uint64_t found = 0;
        for (; (found = at_most(load_u8(sums_ + e), sum)) == 0;) e += kAtOnce;
        return e + __builtin_ctzll(found);
    }

    // Of the entries with sums up to `top`, the first one with the smallest error.
    int32_t first_of(uint8_t top, float& error) const {
        int32_t best = 0;
        float least = INFINITY;
        for (int e = 0; e < book_.entries; e += kAtOnce) {
            for (uint64_t found = at_most(load_u8(sums_ + e), top); found != 0; found &= found - 1) {
                const int entry = e + __builtin_ctzll(found);
                const float own = error_of(entry);
                if (own < least) best = entry;
                if (own < least) least = own;
            }
            if (least == 0.0f) break;
        }
        error = least;
        return best;
    }

    const EntryBook& book_;
    const float (&tables_)[4][16];
    alignas(64) uint8_t sums_[kMostEntries];
};

struct Chosen {
    int32_t entries[kMostGroups * 2];
    float errors[kMostGroups * 2];
    float total;
};

// Chooses the entries with the smallest errors. `found` contains the entries where the searches begin. The
// error of a group is rarely more than kUsual times that of the group before.
void choose(const EntryBook& book, const Prepared& block, const float* weights, int elements, float scale,
            float delta, Chosen& found) {
    Tables tables;
    fill_tables(book, block, weights, elements, scale, delta, tables);
    found.total = 0.0f;
    float usual = INFINITY;
    for (int g = 0; g < elements / book.group; ++g) {
        found.entries[g] = EntrySearch(book, tables[g]).nearest(found.entries[g], usual, found.errors[g]);
        found.total += found.errors[g];
        usual = kUsual * found.errors[g];
    }
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
    Chosen chosen{};
    const auto try_scale = [&](float tried) {
        choose(book, block, weights, elements, tried, 0.0f, chosen);
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
        Chosen best{}, chosen{}, other{};
        uint8_t* signs = out.signs + octets * i;
        for (int64_t at = 0; at < num_scales; ++at) {
            const float scale = scales[at * x.count + i];
            uint8_t deltas[kMostGroups * 2] = {};
            choose(book, block, weights, x.elements, scale, book.is_signed ? 0.0f : kDelta, chosen);
            if (!book.is_signed) {
                choose(book, block, weights, x.elements, scale, -kDelta, other = chosen);
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
