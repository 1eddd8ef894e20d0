// The search for the entries of a codebook (codebooks.h) that are nearest to groups of 8 or 4 elements. A
// lane is a sub-block: the search is for one group of each of 16 of them.
#pragma once

#include <cmath>

#include "lanes.h"

namespace chaski::CHASKI_ISA {

inline constexpr int kMostLevels = 8, kMostRuns = 600, kRun = 4;

// Up to kRun entries from `first` on that have the same levels of the second half of their elements, as
// words: the last entry repeats. They are compared before the errors of those elements are added, which
// changes none of their order.
struct EntryRun {
    uint16_t first;
    uint8_t high, low[kRun];
};

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
    int num_runs = 0;
    EntryRun runs[kMostRuns] = {};  // all entries, in order
};

// The elements of a group.
template <int kGroup>
struct Group {
    static constexpr int kBits = kGroup == 8 ? 2 : 3, kLevels = kGroup == 8 ? 3 : 8;
    static constexpr int kHalfBits = kGroup / 2 * kBits, kHalves = 1 << kHalfBits;

    const Lanes *x, *weights;
};

// The entries with the smallest errors; their numbers are whole floats.
struct NearestEntries {
    F32x16 entries, errors;
};

template <int kGroup>
class EntrySearch {
   public:
    // scale: that of each sub-block. delta: is added to all levels.
    EntrySearch(const EntryBook& book, const Group<kGroup>& group, F32x16 scale, float delta) {
        Lanes errors[kGroup][G::kLevels];
        const F32x16 down = -scale;
        for (int i = 0; i < kGroup; ++i) {
            const F32x16 x = load_f32(group.x[i].v), weight = load_f32(group.weights[i].v);
            for (int k = 0; k < G::kLevels; ++k) {
                const F32x16 rest = x + down * splat(book.values[k] + delta);
                store_f32(errors[i][k].v, weight * (rest * rest));
            }
        }
        for (int h = 0; h < 2; ++h) add_up(errors + h * kGroup / 2, halves_[h]);
    }

    // The first entries with the smallest errors.
    NearestEntries nearest(const EntryBook& book) const {
        F32x16 least = splat(INFINITY), best = splat(0.0f), number = best;
        for (int c = 0; c < book.num_runs; ++c) {
            const EntryRun& run = book.runs[c];
            const auto low = [&](int i) __attribute__((always_inline)) {
                return load_f32(halves_[0][run.low[i]].v);
            };
            const F32x16 error =
                min(min(low(0), low(1)), min(low(2), low(3))) + load_f32(halves_[1][run.high].v);
            best = if_above(least, error, number, best);
            least = min(error, least);
            number = number + splat(1.0f);
        }
        Lanes runs, errors, entries;
        store_f32(runs.v, best);
        store_f32(errors.v, least);
        for (int r = 0; r < kLanes; ++r)
            entries.v[r] =
                static_cast<float>(first_of(book.runs[static_cast<int>(runs.v[r])], r, errors.v[r]));
        return {load_f32(entries.v), least};
    }

   private:
    using G = Group<kGroup>;

    // Adds the errors of half of the elements, two and two, for all words of their levels.
    static void add_up(const Lanes (*errors)[G::kLevels], Lanes (&sums)[G::kHalves]) {
        if constexpr (kGroup == 4) {
            add_pairs<8, 3>(errors[0], errors[1], sums);
        } else {
            Lanes first[16], second[16];
            add_pairs<3, 2>(errors[0], errors[1], first);
            add_pairs<3, 2>(errors[2], errors[3], second);
            add_pairs<11, 4>(first, second, sums);
        }
    }

    // The sums of all pairs of the first kCount numbers, by word: a field of kBits bits for each of both.
    // With kCount 11, numbers whose words have the field 3 are unused.
    template <int kCount, int kBits>
    static void add_pairs(const Lanes* first, const Lanes* second, Lanes* sums) {
        const auto is_used = [](int word) { return kCount != 11 || word % 4 != 3; };
        for (int high = 0; high < kCount; ++high) {
            for (int low = 0; is_used(high) && low < kCount; ++low) {
                if (!is_used(low)) continue;
                const F32x16 sum = load_f32(first[low].v) + load_f32(second[high].v);
                store_f32(sums[low + (high << kBits)].v, sum);
            }
        }
    }

    // The first entry of a run that has this error in lane r. No error is -0.
    int first_of(const EntryRun& run, int r, float error) const {
        const float high = halves_[1][run.high].v[r];
        uint32_t found = 1u << (kRun - 1);
        for (int i = 0; i < kRun - 1; ++i) {
            const float own = halves_[0][run.low[i]].v[r] + high;
            const bool is_same = __builtin_bit_cast(uint32_t, own) == __builtin_bit_cast(uint32_t, error);
            found |= uint32_t{is_same} << i;
        }
        return run.first + __builtin_ctz(found);
    }

    Lanes halves_[2][G::kHalves];  // errors of the lower and of the higher half of the elements, by word
};

}  // namespace chaski::CHASKI_ISA
