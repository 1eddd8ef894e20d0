// Scales and entries of the types with codebooks (codebooks.h). The levels of 8 or 4 elements must be an
// entry.
//
// The search for a scale ignores the codebook: a lane is a sub-block, and each element takes its nearest
// level. The entries are then the best ones for the scale that is stored.
#include <cmath>

#include "codebooks.h"
#include "entry_points.h"
#include "entry_search.h"
#include "lanes.h"

namespace chaski::CHASKI_ISA {
namespace {

// Elements of the same size have the same gain with each level. The highest level is tried first and kept,
// because most codebooks have an entry of it alone.
constexpr float kSameFit = 1.0f + 1e-5f;
constexpr float kNoSize = 1e-15f, kDelta = 0.125f, kOneSize = 0.5f;
// The scales for which entries are compared, over the best one without a codebook.
constexpr float kTriedScales[] = {1.0f, 0.91f, 1.11f, 0.83f};
constexpr int kMostGroups = 8, kMostOctets = 4, kScales = 32;

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

// 16 sub-blocks as their entries see them: with magnitudes if the signs are stored elsewhere. If the number
// of negative signs of 8 elements must be even, the element that matters least takes the wrong one.
template <int kElements>
struct Prepared {
    Lanes x[kElements], weights[kElements];
    Lanes signs[kElements / 8];  // a bit for each negative one of 8 elements
    Lanes largest, smallest;     // magnitudes
};

// Fills in the 8 elements from `begin` on, whose values are in `found.x`, and their signs.
template <int kElements>
void take_signs(bool is_even, int begin, Prepared<kElements>& found) {
    const F32x16 zero = splat(0.0f);
    const auto if_negative = [&](F32x16 value, F32x16 x, F32x16 y)
                                 __attribute__((always_inline)) { return if_above(zero, value, x, y); };
    const F32x16 first = load_f32(found.x[begin].v);
    F32x16 signs = zero, parity = splat(1.0f), cost = splat(INFINITY);
    F32x16 least = splat(static_cast<float>(begin)), least_change = if_negative(first, splat(-1.0f), parity);
    for (int i = begin; i < begin + 8; ++i) {
        const F32x16 value = load_f32(found.x[i].v), bit = splat(static_cast<float>(1 << (i - begin)));
        const F32x16 own = load_f32(found.weights[i].v) * value * value;
        store_f32(found.x[i].v, if_negative(value, -value, value));
        signs = signs + if_negative(value, bit, zero);
        parity = if_negative(value, -parity, parity);
        least = if_above(cost, own, splat(static_cast<float>(i)), least);
        least_change = if_above(cost, own, if_negative(value, -bit, bit), least_change);
        cost = if_above(cost, own, own, cost);
    }
    if (is_even) {
        signs = if_negative(parity, signs + least_change, signs);
        const F32x16 wrong = if_negative(parity, least, splat(-1.0f));
        for (int i = begin; i < begin + 8; ++i) {
            const F32x16 value = load_f32(found.x[i].v), place = splat(static_cast<float>(i));
            store_f32(found.x[i].v, if_above(wrong, place, value, if_above(place, wrong, value, -value)));
        }
    }
    store_f32(found.signs[begin / 8].v, signs);
}

template <int kElements>
void prepare(const EntryBook& book, const float* x, const float* weights, int64_t count,
             Prepared<kElements>& found) {
    to_lanes(x, count, found.x);
    to_lanes(weights, count, found.weights);
    F32x16 largest = splat(0.0f), smallest = splat(INFINITY);
    for (const Lanes& each : found.x) {
        largest = max(size_of(load_f32(each.v)), largest);
        smallest = min(size_of(load_f32(each.v)), smallest);
    }
    store_f32(found.largest.v, largest);
    store_f32(found.smallest.v, smallest);
    for (int begin = 0; book.is_signed && begin < kElements; begin += 8)
        take_signs(book.is_even, begin, found);
}

// The best scales of 16 sub-blocks for the levels that elements have with each of the tried scales, if every
// level is possible.
struct LevelFits {
    F32x16 scale = splat(0.0f), gain = splat(0.0f);
};

// The levels of all elements come first, because those and the sums together need too many registers.
template <int kLevels, int kElements>
__attribute__((noinline)) void fit_levels(const EntryBook& book, const Prepared<kElements>& block,
                                          float delta, LevelFits& best) {
    const F32x16 zero = splat(0.0f), largest = load_f32(block.largest.v);
    const F32x16 inverse = splat(book.values[kLevels - 1]) / largest;
    float levels[kLevels], middles[kLevels - 1];
    for (int k = 0; k < kLevels; ++k) levels[k] = book.values[k] + delta;
    for (int k = 0; k + 1 < kLevels; ++k) middles[k] = 0.5f * (book.values[k] + book.values[k + 1]) + delta;
    for (int t = 0; t < kScales; ++t) {
        const float share = static_cast<float>(t) / (kScales - 1);
        const F32x16 by = inverse * splat(book.high - (book.high - book.low) * share);
        Lanes own[kElements];
        for (int i = 0; i < kElements; ++i) {
            const F32x16 at = load_f32(block.x[i].v) * by;
            F32x16 level = splat(levels[0]);
            unroll<kLevels - 1>([&](auto k) __attribute__((always_inline)) {
                level = if_above(at, splat(middles[k]), splat(levels[k + 1]), level);
            });
            store_f32(own[i].v, level);
        }
        F32x16 ll = zero, xl = zero;
        for (int i = 0; i < kElements; ++i) {
            const F32x16 level = load_f32(own[i].v), weighted = load_f32(block.weights[i].v) * level;
            ll = ll + weighted * level;
            xl = xl + weighted * load_f32(block.x[i].v);
        }
        const F32x16 scale = if_above(ll, zero, xl / ll, zero);
        const F32x16 gain = if_above(scale, zero, scale * xl, zero), least = splat(kSameFit) * best.gain;
        best.scale = if_above(gain, least, scale, best.scale);
        best.gain = if_above(gain, least, gain, best.gain);
    }
    best.scale = if_above(largest, splat(kNoSize), best.scale, zero);
}

template <int kElements>
F32x16 fit_levels(const EntryBook& book, const Prepared<kElements>& block) {
    LevelFits best;
    if (!book.is_signed) {
        for (float delta : {kDelta, -kDelta}) fit_levels<3>(book, block, delta, best);
    } else if (book.levels == 3) {
        fit_levels<3>(book, block, 0.0f, best);
    } else {
        fit_levels<8>(book, block, 0.0f, best);
    }
    return best.scale;
}

// One sub-block of them.
struct Block {
    const float *x, *weights;
    int elements;
};

struct Chosen {
    int32_t entries[kMostGroups];
    float errors[kMostGroups];
    float total;
};

// The error of a group rarely exceeds this share of its weight, in squares of the distance of two levels.
constexpr float kUsual = 1.0f;

// Chooses the entries with the smallest errors. `found` contains the entries where the searches begin.
template <int kGroup>
void choose_groups(const EntryBook& book, const Block& block, float scale, float delta, Chosen& found) {
    EntrySearch searches[kMostGroups];
    const WordLevels levels(book, scale, delta);
    const float step = scale * (book.values[book.levels - 1] - book.values[0]) / (book.levels - 1);
    const int groups = block.elements / kGroup;
    for (int g = 0; g < groups; ++g) {
        searches[g].start<kGroup>(book, block.x + kGroup * g, block.weights + kGroup * g, levels,
                                  found.entries[g], kUsual * step * step);
    }
    found.total = 0.0f;
    for (int g = 0; g < groups; ++g) {
        found.entries[g] = searches[g].nearest(book, found.errors[g]);
        found.total += found.errors[g];
    }
}

void choose(const EntryBook& book, const Block& block, float scale, float delta, Chosen& found) {
    if (book.group == 8) {
        choose_groups<8>(book, block, scale, delta, found);
    } else {
        choose_groups<4>(book, block, scale, delta, found);
    }
}

// The sums that the best scale for given entries follows from.
struct EntrySums {
    float ll = 0.0f, xl = 0.0f;
};

template <int kGroup>
EntrySums sum_groups(const EntryBook& book, const Block& block, const Chosen& chosen,
                     const uint8_t* negative) {
    constexpr int kBits = kGroup == 8 ? 2 : 3;
    EntrySums sums;
    for (int g = 0; g < block.elements / kGroup; ++g) {
        const float *x = block.x + kGroup * g, *weights = block.weights + kGroup * g;
        const int word = book.words[chosen.entries[g]];
        const float delta = negative == nullptr ? 0.0f : negative[g] != 0 ? -kDelta : kDelta;
        unroll<kGroup>([&](auto i) __attribute__((always_inline)) {
            const float level = book.values[word >> (kBits * i) & ((1 << kBits) - 1)] + delta;
            sums.ll += weights[i] * level * level;
            sums.xl += weights[i] * level * x[i];
        });
    }
    return sums;
}

// negative: for each group, whether its delta is negative; null without deltas.
EntrySums sum_up(const EntryBook& book, const Block& block, const Chosen& chosen, const uint8_t* negative) {
    if (book.group == 8) return sum_groups<8>(book, block, chosen, negative);
    return sum_groups<4>(book, block, chosen, negative);
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
// elements of one size, the only entry of one level may be the best one. largest, smallest: magnitudes.
float fit_entries(const EntryBook& book, const Block& block, float largest, float smallest, float near) {
    float best = 0.0f, best_gain = 0.0f;
    Chosen chosen{};
    const auto try_scale = [&](float tried) {
        choose(book, block, tried, 0.0f, chosen);
        const EntrySums sums = sum_up(book, block, chosen, nullptr);
        const float scale = sums.ll > 0.0f ? sums.xl / sums.ll : 0.0f, gain = scale * sums.xl;
        if (scale > 0.0f && gain > best_gain) best = scale, best_gain = gain;
    };
    for (int i = 0; i < book.tries; ++i) try_scale(near * kTriedScales[i]);
    if (book.is_lowest_alone && smallest > kOneSize * largest) try_scale(largest / book.values[0]);
    return best;
}

// The best scale of a sub-block, its entries, and the signs of magnitudes, or of deltas.
struct ChosenBlock {
    Chosen best;
    uint8_t choice, signs[kMostOctets];
};

// scales: `num_scales` of them, `stride` floats apart. signs: those of the magnitudes of 8 elements.
ChosenBlock choose_scale(DType type, const EntryBook& book, const Block& block, const float* scales,
                         int64_t num_scales, int64_t stride, const uint8_t (&signs)[kMostOctets]) {
    ChosenBlock found{};
    Chosen chosen{}, other{};
    for (int64_t at = 0; at < num_scales; ++at) {
        const float scale = scales[at * stride];
        uint8_t deltas[kMostOctets] = {};
        choose(book, block, scale, book.is_signed ? 0.0f : kDelta, chosen);
        if (!book.is_signed) {
            choose(book, block, scale, -kDelta, other = chosen);
            choose_deltas(type == DType::IQ1_M, block.elements / book.group, other, chosen, deltas);
        }
        if (at != 0 && chosen.total >= found.best.total) continue;
        found.best = chosen;
        found.choice = static_cast<uint8_t>(at);
        __builtin_memcpy(found.signs, book.is_signed ? signs : deltas, kMostOctets);
    }
    return found;
}

template <int kElements>
void fit_scales(const EntryBook& book, const SubBlocks& x, float* scales) {
    for (int64_t begin = 0; begin < x.count; begin += kLanes) {
        const auto count = static_cast<int>(x.count - begin < kLanes ? x.count - begin : kLanes);
        const float* weights = x.weights + begin * kElements;
        Prepared<kElements> found;
        prepare(book, x.values + begin * kElements, weights, count, found);
        const F32x16 near = fit_levels(book, found);
        store_f32(scales + begin, near, count);
        if (!book.is_signed) continue;
        alignas(64) float rows[kLanes * kElements];
        to_rows(found.x, rows);
        for (int r = 0; r < count; ++r) {
            float& scale = scales[begin + r];
            const Block block{rows + r * kElements, weights + r * kElements, kElements};
            scale = fit_entries(book, block, found.largest.v[r], found.smallest.v[r], scale);
        }
    }
}

template <int kElements>
void choose_all(DType type, const SubBlocks& x, const float* scales, int64_t num_scales,
                const ChosenEntries& out) {
    const EntryBook book = book_of(type);
    constexpr int kOctets = kElements / 8;
    const int groups = kElements / book.group;
    for (int64_t begin = 0; begin < x.count; begin += kLanes) {
        const auto count = static_cast<int>(x.count - begin < kLanes ? x.count - begin : kLanes);
        const float* weights = x.weights + begin * kElements;
        Prepared<kElements> found;
        prepare(book, x.values + begin * kElements, weights, count, found);
        alignas(64) float rows[kLanes * kElements];
        to_rows(found.x, rows);
        for (int r = 0; r < count; ++r) {
            const int64_t i = begin + r;
            const Block block{rows + r * kElements, weights + r * kElements, kElements};
            uint8_t signs[kMostOctets] = {};
            for (int k = 0; k < kOctets && book.is_signed; ++k)
                signs[k] = static_cast<uint8_t>(found.signs[k].v[r]);
            const ChosenBlock chosen =
                choose_scale(type, book, block, scales + i, num_scales, x.count, signs);
            out.choices[i] = chosen.choice;
            __builtin_memcpy(out.signs + kOctets * i, chosen.signs, kOctets);
            for (int g = 0; g < groups; ++g)
                out.entries[groups * i + g] = static_cast<uint16_t>(chosen.best.entries[g]);
            const EntrySums sums = sum_up(book, block, chosen.best, book.is_signed ? nullptr : chosen.signs);
            out.sums[kEntrySums * i] = sums.ll;
            out.sums[kEntrySums * i + 1] = sums.xl;
        }
    }
}

}  // namespace

void fit_codebook(DType type, const SubBlocks& x, float* scales) {
    const EntryBook book = book_of(type);
    if (x.elements == 16) {
        fit_scales<16>(book, x, scales);
    } else {
        fit_scales<32>(book, x, scales);
    }
}

void choose_entries(DType type, const SubBlocks& x, const float* scales, int64_t num_scales,
                    const ChosenEntries& out) {
    if (x.elements == 16) {
        choose_all<16>(type, x, scales, num_scales, out);
    } else {
        choose_all<32>(type, x, scales, num_scales, out);
    }
}

}  // namespace chaski::CHASKI_ISA
