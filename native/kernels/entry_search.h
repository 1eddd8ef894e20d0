// The search for the entry of a codebook (codebooks.h) that is nearest to 8 or 4 elements.
#pragma once

#include <cmath>

#include "lanes.h"

namespace chaski::CHASKI_ISA {

inline constexpr int kMostLevels = 8, kMostEntries = 2048;

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

// Of 64 bytes: sums, 255 at most; the smaller ones; the smallest one of all; and a bit for each byte that is
// at most `top`.
#if defined(__AVX2__)
CHASKI_INLINE uint8_t least_byte(__m256i a) {
    const __m128i half = _mm_min_epu8(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    const __m128i words = _mm_minpos_epu16(_mm_min_epu8(half, _mm_srli_epi16(half, 8)));
    return static_cast<uint8_t>(_mm_cvtsi128_si32(words));
}
#endif
#if defined(__AVX512F__)
CHASKI_INLINE U8x64 add_saturated(U8x64 a, U8x64 b) { return {_mm512_adds_epu8(a.v, b.v)}; }
CHASKI_INLINE U8x64 least_bytes(U8x64 a, U8x64 b) { return {_mm512_min_epu8(a.v, b.v)}; }
CHASKI_INLINE uint64_t at_most(U8x64 a, uint8_t top) {
    return _mm512_cmple_epu8_mask(a.v, _mm512_set1_epi8(static_cast<char>(top)));
}
CHASKI_INLINE uint8_t least_byte(U8x64 a) {
    return least_byte(_mm256_min_epu8(_mm512_castsi512_si256(a.v), _mm512_extracti64x4_epi64(a.v, 1)));
}
#elif defined(__AVX2__)
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
CHASKI_INLINE uint8_t least_byte(U8x64 a) { return least_byte(_mm256_min_epu8(a.lo, a.hi)); }
#else
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
CHASKI_INLINE uint8_t least_byte(U8x64 a) {
    uint8_t x[64], least = 255;
    store_u8(x, a);
    for (const uint8_t one : x) least = one < least ? one : least;
    return least;
}
CHASKI_INLINE uint64_t at_most(U8x64 a, uint8_t top) {
    uint8_t x[64];
    store_u8(x, a);
    uint64_t found = 0;
    for (int r = 0; r < 64; ++r) found |= uint64_t{x[r] <= top} << r;
    return found;
}
#endif

// The levels of the first and of the second element for each value of four bits of a word, times -scale. Of
// three bits, only the first is used.
struct WordLevels {
    Lanes first, second;

    WordLevels(const EntryBook& book, float scale, float delta) {
        for (int k = 0; k < kLanes; ++k) {
            first.v[k] = -scale * (book.values[book.group == 8 ? k % 4 : k % 8] + delta);
            second.v[k] = -scale * (book.values[k / 4] + delta);
        }
    }
};

// A search for the entry with the smallest error. The four parts of each entry's error are rounded down to
// multiples of a unit and added in bytes. Only entries whose sums are near the smallest one, one to three on
// average, are compared exactly.
//
// The searches for the groups of a sub-block do not depend on each other, and each step is made for all of
// them, so that a processor works on several at once.
class EntrySearch {
   public:
    // x, weights: the elements of the group. levels: with the scale. near: any entry; the smaller its error,
    // the finer the unit. usual: the largest usual error of elements of weight 1, which makes the unit finer.
    template <int kGroup>
    void start(const EntryBook& book, const float* x, const float* weights, const WordLevels& levels,
               int32_t near, float usual) {
        fill_errors<kGroup>(x, weights, levels);
        float weight = weights[0];
        for (int i = 1; i < kGroup; ++i) weight += weights[i];
        usual *= weight;
        most_ = error_of(book, near);
        least_ = add_whole_parts(book, usual < most_ ? usual : most_);
    }

    // The first entry with the smallest error.
    int32_t nearest(const EntryBook& book, float& error) {
        if (least_ == kFull) least_ = add_whole_parts(book, most_);
        if (least_ < kCoarse) least_ = add_whole_parts(book, error_of(book, first(least_)));
        return first_of(book, static_cast<uint8_t>(least_ < kFull - kParts ? least_ + kParts : kFull), error);
    }

   private:
    template <int kGroup>
    void fill_errors(const float* x, const float* weights, const WordLevels& levels) {
        const auto of = [&](int i, const Lanes& own) __attribute__((always_inline)) {
            const F32x16 rest = splat(x[i]) + load_f32(own.v);
            return splat(weights[i]) * (rest * rest);
        };
        for (int i = 0; i < kParts; ++i) {
            if constexpr (kGroup == 8) {
                store_f32(errors_[i].v, of(2 * i, levels.first) + of(2 * i + 1, levels.second));
            } else {
                store_f32(errors_[i].v, of(i, levels.first));
            }
        }
    }

    // An exact error is less than four units above the sum of its whole parts, unless that is full.
    static constexpr int kParts = 4, kTop = 250, kFull = 255, kCoarse = 16, kAtOnce = 64, kChunk = 256;
    static constexpr float kLeastError = 1e-36f;

    float error_of(const EntryBook& book, int entry) const {
        const auto part = [&](int i)
                              __attribute__((always_inline)) { return errors_[i].v[book.fields[i][entry]]; };
        return (part(0) + part(1)) + (part(2) + part(3));
    }

    // Adds whole parts in a unit with which an error of this size is kTop -> the smallest sum.
    uint8_t add_whole_parts(const EntryBook& book, float error) {
        const F32x16 per_unit = splat(kTop / (error > kLeastError ? error : kLeastError));
        alignas(64) uint8_t whole[kParts][16];
        for (int i = 0; i < kParts; ++i)
            store_bytes(whole[i], truncate_to_i32(min(load_f32(errors_[i].v) * per_unit, splat(255.0f))));
        uint8_t least = kFull;
        for (int chunk = 0; chunk < book.entries; chunk += kChunk) {
            U8x64 of_chunk = as_bytes(splat(-1));
            for (int e = chunk; e < chunk + kChunk; e += kAtOnce) {
                const auto part = [&](int i) __attribute__((always_inline)) {
                    return lookup(whole[i], load_u8(book.fields[i] + e));
                };
                const U8x64 sum =
                    add_saturated(add_saturated(part(0), part(1)), add_saturated(part(2), part(3)));
                store_u8(sums_ + e, sum);
                of_chunk = least_bytes(of_chunk, sum);
            }
            const uint8_t own = chunk_least_[chunk / kChunk] = least_byte(of_chunk);
            least = own < least ? own : least;
        }
        return least;
    }

    int first(uint8_t sum) const {
        int e = 0;
        uint64_t found = 0;
        for (; (found = at_most(load_u8(sums_ + e), sum)) == 0;) e += kAtOnce;
        return e + __builtin_ctzll(found);
    }

    // Of the entries with sums up to `top`, the first one with the smallest error. Most chunks have one such
    // entry or none.
    int32_t first_of(const EntryBook& book, uint8_t top, float& error) const {
        int32_t best = 0;
        float least = INFINITY;
        for (int chunk = 0; chunk < book.entries; chunk += kChunk) {
            if (chunk_least_[chunk / kChunk] > top) continue;
            int32_t entries[kChunk + 1];
            int count = 0;
            for (int e = chunk; e < chunk + kChunk; e += kAtOnce) {
                uint64_t found = at_most(load_u8(sums_ + e), top);
                do {
                    entries[count] = e + __builtin_ctzll(found | uint64_t{1} << 63);
                    count += found != 0 ? 1 : 0;
                    found &= found - 1;
                } while (found != 0);
            }
            for (int i = 0; i < count; ++i) {
                const float own = error_of(book, entries[i]);
                if (own < least) best = entries[i];
                if (own < least) least = own;
            }
            if (least == 0.0f) break;
        }
        error = least;
        return best;
    }

    Lanes errors_[kParts];  // of all values of the parts
    float most_;
    uint8_t least_, chunk_least_[kMostEntries / kChunk];
    alignas(64) uint8_t sums_[kMostEntries];
};

}  // namespace chaski::CHASKI_ISA
