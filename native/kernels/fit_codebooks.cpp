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
constexpr int kMostGroups = 8, kScales = 32;

EntryBook without_runs(DType type) {
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
    EntryBook book = without_runs(type);
    const int half = book.group == 8 ? Group<8>::kHalfBits : Group<4>::kHalfBits;
    const auto high_of = [&](int e) { return e < book.entries ? book.words[e] >> half : -1; };
    for (int e = 0; e < book.entries; ++e) {
        EntryRun& run = book.runs[book.num_runs++];
        run = {static_cast<uint16_t>(e), static_cast<uint8_t>(high_of(e)), {}};
        for (int i = 0; i < kRun; ++i) {
            if (i > 0 && high_of(e + 1) == run.high) ++e;
            run.low[i] = static_cast<uint8_t>(book.words[e] & ((1 << half) - 1));
        }
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

// The entries of the groups of 16 sub-blocks.
struct Chosen {
    Lanes entries[kMostGroups], errors[kMostGroups];
    Lanes deltas[kMostGroups];  // of IQ1: 1 for a negative one
    F32x16 total;
};

CHASKI_INLINE void take_where_less(F32x16 a, F32x16 b, const Lanes& from, Lanes& to) {
    store_f32(to.v, if_above(b, a, load_f32(from.v), load_f32(to.v)));
}

// Chooses the entries with the smallest errors for these scales.
template <int kGroup, int kElements>
void choose_groups(const EntryBook& book, const Prepared<kElements>& block, F32x16 scale, float delta,
                   Chosen& found) {
    found.total = splat(0.0f);
    for (int g = 0; g < kElements / kGroup; ++g) {
        const Group<kGroup> group{block.x + kGroup * g, block.weights + kGroup * g};
        const NearestEntries nearest = EntrySearch<kGroup>(book, group, scale, delta).nearest(book);
        store_f32(found.entries[g].v, nearest.entries);
        store_f32(found.errors[g].v, nearest.errors);
        store_f32(found.deltas[g].v, splat(delta < 0.0f ? 1.0f : 0.0f));
        found.total = found.total + nearest.errors;
    }
}

// Takes the entries with a negative delta where they are better: in each group, or in all.
void take_better_deltas(bool is_each, int groups, const Chosen& other, Chosen& chosen) {
    const F32x16 total = chosen.total;
    chosen.total = splat(0.0f);
    for (int g = 0; g < groups; ++g) {
        const F32x16 own = is_each ? load_f32(chosen.errors[g].v) : total;
        const F32x16 others = is_each ? load_f32(other.errors[g].v) : other.total;
        take_where_less(others, own, other.entries[g], chosen.entries[g]);
        take_where_less(others, own, other.deltas[g], chosen.deltas[g]);
        take_where_less(others, own, other.errors[g], chosen.errors[g]);
        chosen.total = chosen.total + load_f32(chosen.errors[g].v);
    }
}

template <int kGroup, int kElements>
void choose(DType type, const EntryBook& book, const Prepared<kElements>& block, F32x16 scale,
            Chosen& found) {
    choose_groups<kGroup>(book, block, scale, book.is_signed ? 0.0f : kDelta, found);
    if (book.is_signed) return;
    Chosen other;
    choose_groups<kGroup>(book, block, scale, -kDelta, other);
    take_better_deltas(type == DType::IQ1_M, kElements / kGroup, other, found);
}

// The sums that the best scale for given entries follows from.
struct EntrySums {
    F32x16 ll = splat(0.0f), xl = splat(0.0f);
};

template <int kGroup, int kElements>
EntrySums sum_up(const EntryBook& book, const Prepared<kElements>& block, const Chosen& chosen) {
    using G = Group<kGroup>;
    EntrySums sums;
    for (int g = 0; g < kElements / kGroup; ++g) {
        int32_t words[kLanes];
        for (int r = 0; r < kLanes; ++r) words[r] = book.words[static_cast<int32_t>(chosen.entries[g].v[r])];
        const F32x16 half = splat(0.5f), negative = load_f32(chosen.deltas[g].v);
        const F32x16 delta =
            book.is_signed ? splat(0.0f) : if_above(negative, half, splat(-kDelta), splat(kDelta));
        unroll<kGroup>([&](auto i) __attribute__((always_inline)) {
            const F32x16 number = to_f32(bits<G::kBits * i, G::kBits>(load_i32(words)));
            F32x16 level = splat(book.values[0]);
            unroll<G::kLevels - 1>([&](auto k) __attribute__((always_inline)) {
                level = if_above(number, splat(k + 0.5f), splat(book.values[k + 1]), level);
            });
            level = level + delta;
            const F32x16 weighted = load_f32(block.weights[kGroup * g + i].v) * level;
            sums.ll = sums.ll + weighted * level;
            sums.xl = sums.xl + weighted * load_f32(block.x[kGroup * g + i].v);
        });
    }
    return sums;
}

// The best scales near these ones for the entries that they choose: entries lack some levels, which moves
// them. For elements of one size, the only entry of one level may be the best one.
template <int kGroup, int kElements>
F32x16 fit_entries(DType type, const EntryBook& book, const Prepared<kElements>& block, F32x16 near) {
    const F32x16 zero = splat(0.0f), largest = load_f32(block.largest.v);
    F32x16 best = zero, best_gain = zero;
    // Tries scales where `above` is above `below`.
    const auto try_scale = [&](F32x16 tried, F32x16 above, F32x16 below) {
        Chosen chosen;
        choose<kGroup>(type, book, block, tried, chosen);
        const EntrySums sums = sum_up<kGroup>(book, block, chosen);
        const F32x16 scale = if_above(sums.ll, zero, sums.xl / sums.ll, zero);
        const F32x16 gain = if_above(above, below, if_above(scale, zero, scale * sums.xl, zero), zero);
        best = if_above(gain, best_gain, scale, best);
        best_gain = if_above(gain, best_gain, gain, best_gain);
    };
    for (int i = 0; i < book.tries; ++i) try_scale(near * splat(kTriedScales[i]), splat(1.0f), zero);
    if (book.is_lowest_alone)
        try_scale(largest / splat(book.values[0]), load_f32(block.smallest.v), splat(kOneSize) * largest);
    return best;
}

// Scales of 16 sub-blocks: `tries` of them, `stride` floats apart.
struct Tried {
    const float* scales;
    int64_t stride, tries;
    int count;
    F32x16 at(int64_t t) const { return load_f32(scales + t * stride, count); }
};

// The best of the tried scales of 16 sub-blocks, and its entries.
template <int kGroup, int kElements>
void choose_scale(DType type, const EntryBook& book, const Prepared<kElements>& block, const Tried& scales,
                  Chosen& best, Lanes& choice) {
    choose<kGroup>(type, book, block, scales.at(0), best);
    store_f32(choice.v, splat(0.0f));
    for (int64_t t = 1; t < scales.tries; ++t) {
        Chosen chosen;
        choose<kGroup>(type, book, block, scales.at(t), chosen);
        Lanes number;
        store_f32(number.v, splat(static_cast<float>(t)));
        for (int g = 0; g < kElements / kGroup; ++g) {
            take_where_less(chosen.total, best.total, chosen.entries[g], best.entries[g]);
            take_where_less(chosen.total, best.total, chosen.deltas[g], best.deltas[g]);
        }
        take_where_less(chosen.total, best.total, number, choice);
        best.total = if_above(best.total, chosen.total, chosen.total, best.total);
    }
}

template <int kGroup, int kElements>
void fit_scales(DType type, const EntryBook& book, const SubBlocks& x, float* scales) {
    for (int64_t begin = 0; begin < x.count; begin += kLanes) {
        const auto count = static_cast<int>(x.count - begin < kLanes ? x.count - begin : kLanes);
        Prepared<kElements> block;
        prepare(book, x.values + begin * kElements, x.weights + begin * kElements, count, block);
        F32x16 scale = fit_levels(book, block);
        if (book.is_signed) scale = fit_entries<kGroup>(type, book, block, scale);
        store_f32(scales + begin, scale, count);
    }
}

template <int kGroup, int kElements>
void choose_all(DType type, const EntryBook& book, const SubBlocks& x, const float* scales, int64_t tries,
                const ChosenEntries& out) {
    constexpr int kOctets = kElements / 8, kGroups = kElements / kGroup;
    for (int64_t begin = 0; begin < x.count; begin += kLanes) {
        const auto count = static_cast<int>(x.count - begin < kLanes ? x.count - begin : kLanes);
        Prepared<kElements> block;
        prepare(book, x.values + begin * kElements, x.weights + begin * kElements, count, block);
        Chosen best;
        Lanes choice, ll, xl;
        choose_scale<kGroup>(type, book, block, {scales + begin, x.count, tries, count}, best, choice);
        const EntrySums sums = sum_up<kGroup>(book, block, best);
        store_f32(ll.v, sums.ll);
        store_f32(xl.v, sums.xl);
        const Lanes* signs = book.is_signed ? block.signs : best.deltas;
        for (int r = 0; r < count; ++r) {
            const int64_t i = begin + r;
            out.choices[i] = static_cast<uint8_t>(choice.v[r]);
            for (int k = 0; k < kOctets; ++k)
                out.signs[kOctets * i + k] = static_cast<uint8_t>(signs[k].v[r]);
            for (int g = 0; g < kGroups; ++g)
                out.entries[kGroups * i + g] = static_cast<uint16_t>(best.entries[g].v[r]);
            out.sums[kEntrySums * i] = ll.v[r];
            out.sums[kEntrySums * i + 1] = xl.v[r];
        }
    }
}

// Calls `f` with the numbers of elements of a group and of a sub-block as constants.
template <class F>
void with_sizes(const EntryBook& book, int elements, const F& f) {
    if (book.group == 4) return f(Index<4>{}, Index<32>{});
    if (elements == 16) return f(Index<8>{}, Index<16>{});
    f(Index<8>{}, Index<32>{});
}

}  // namespace

void fit_codebook(DType type, const SubBlocks& x, float* scales) {
    const EntryBook book = book_of(type);
    with_sizes(book, x.elements,
               [&](auto group, auto elements) { fit_scales<group, elements>(type, book, x, scales); });
}

void choose_entries(DType type, const SubBlocks& x, const float* scales, int64_t num_scales,
                    const ChosenEntries& out) {
    const EntryBook book = book_of(type);
    with_sizes(book, x.elements, [&](auto group, auto elements) {
        choose_all<group, elements>(type, book, x, scales, num_scales, out);
    });
}

}  // namespace chaski::CHASKI_ISA
