// Sums of products with entries of codebooks, for AVX2: single loads of entries are faster than gathers, and
// signs are moved to the activations, so that the levels of entries are multiplied as they are.
//
// An entry of IQ1 and IQ2 has eight elements, so a register holds those of four rows, and the sums of a row
// have two lanes until the end. Rows are chosen such that a horizontal addition puts them in order:
//
//   quad 0: rows 0 1 4 5   quad 1: rows 2 3 6 7   then 8 more each
//
// An entry of IQ3 has four elements, so a register holds those of eight rows.
#pragma once

#include <bit>

#include "blocks.h"

namespace chaski::CHASKI_ISA {

#if defined(__AVX2__) && !defined(__AVX512F__)
inline constexpr bool kSumsEntries = true;

// The entries of a codebook, in the first-level cache: levels of IQ2 and IQ3, codes of IQ1. A register may be
// read from up to 12 bytes before an entry on.
template <class Format>
struct EntryLevels {
    using Book = typename Format::Entries;
    static constexpr int kFirst = 16;
    alignas(64) uint8_t of[kFirst + Book::kEntries * Book::kElements + 16] = {};

    constexpr EntryLevels() {
        for (int i = 0; i < Book::kEntries * Book::kElements; ++i) {
            const int code = Book::kCodes[Book::level(i / Book::kElements, i % Book::kElements)];
            of[kFirst + i] = static_cast<uint8_t>(code - (Format::kHasDeltas ? 0 : Format::kOffset));
        }
    }
    CHASKI_INLINE const uint8_t* entry(size_t index) const { return of + kFirst + Book::kElements * index; }
};
template <class Format>
constexpr EntryLevels<Format> kEntryLevels;
template <class Format>
inline constexpr int kMaxLevel = Format::kHasDeltas ? Format::kMaxCode : Format::kOffset;

// Adds number kStep of kSteps products; `pairs` are sums of 16 bits, which `total` receives before they
// overflow.
template <int kLevel, int kStep, int kSteps>
CHASKI_INLINE void add_levels(__m256i& total, __m256i& pairs, __m256i levels, __m256i x) {
#if defined(__AVXVNNI__)
    pairs = total;
    total = _mm256_dpbusd_avx_epi32(kStep == 0 ? _mm256_setzero_si256() : pairs, levels, x);
#else
    constexpr int kRun = 32767 / (2 * 127 * kLevel);
    const __m256i more = _mm256_maddubs_epi16(levels, x);
    pairs = kStep % kRun == 0 ? more : _mm256_add_epi16(pairs, more);
    if constexpr ((kStep + 1) % kRun == 0 || kStep + 1 == kSteps) {
        const __m256i wide = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        total = kStep < kRun ? wide : _mm256_add_epi32(total, wide);
    }
#endif
}

// The parts of a block that kernels read several times, or that are put together first, by runs of 32
// elements.
template <class Format>
struct EntryParts {
    static constexpr int kRuns = Format::kElements / 32, kHalves = 8 / Format::Entries::kElements;
    static constexpr bool kHasHigh = Format::Entries::kEntries > 256;
    Format block;
    // Signs or deltas of each row.
    alignas(32) uint32_t signs[kRuns][kLanes];
    // Indices of each row, in the order of quads.
    alignas(32) uint16_t indices[kHasHigh ? kRuns : 1][kHalves][4 * kLanes];

    CHASKI_INLINE explicit EntryParts(Format of) : block(of) {
        unroll<kRuns>([&](auto r) __attribute__((always_inline)) {
            if constexpr (Format::kHasDeltas)
                store_u8(signs[r], block.template deltas<r.value>());
            else
                store_u8(signs[r], block.template signs<r.value>());
            if constexpr (kHasHigh) {
                unroll<kHalves>([&](auto h) __attribute__((always_inline)) {
                    const U8x64 high = block.template high<r.value, h.value>();
                    const uint8_t* low = block.low(r, h);
                    store(load_256(low, 0), high.lo, indices[r][h]);
                    store(load_256(low, 1), high.hi, indices[r][h] + 2 * kLanes);
                });
            }
        });
    }
    static CHASKI_INLINE void store(__m256i low, __m256i high, uint16_t* to) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm256_unpacklo_epi8(low, high));
        _mm256_store_si256(reinterpret_cast<__m256i*>(to) + 1, _mm256_unpackhi_epi8(low, high));
    }

    // The four indices of each of some rows, by places in registers: of eight rows, or of a quad. Loading an
    // index takes fewer instructions than moving it out of a word, but loads are the next limit. So the first
    // two rows load their indices of one byte, and the others rotate them out of a word. It was measured
    // which indices of two bytes are faster to shift and which to load.
    template <int kRows>
    struct Indices {
        using Words = std::conditional_t<!kHasHigh, uint32_t,
                                         std::conditional_t<kHalves == 2, uint64_t, const uint16_t*>>;
        static constexpr int kLoaded = 2;
        const uint8_t* bytes[kLoaded];
        Words of[kRows];

        template <int I>
        CHASKI_INLINE size_t get(int place) const {
            if constexpr (!kHasHigh)
                return place < kLoaded ? bytes[place][I] : static_cast<uint8_t>(std::rotr(of[place], 8 * I));
            else if constexpr (kHalves == 2)
                return static_cast<uint16_t>(of[place] >> 16 * I);
            else
                return of[place][I];
        }
    };
    template <int kRows, class Row>
    CHASKI_INLINE Indices<kRows> indices_of(int run, int half, int rows, const Row& row_at) const {
        Indices<kRows> all;
        unroll<kRows>([&](auto place) __attribute__((always_inline)) {
            const int row = row_at(place);
            const uint8_t* low = block.low(run, half) + 32 * rows + 4 * row;
            const uint16_t* stored =
                indices[run][half] + 32 * rows + 4 * (row / 2 % 2 * 4 + row / 4 * 2 + row % 2);
            if constexpr (place < Indices<kRows>::kLoaded) all.bytes[place] = low;
            if constexpr (!kHasHigh)
                all.of[place] = read<uint32_t>(low);
            else if constexpr (kHalves == 2)
                all.of[place] = read<uint64_t>(stored);
            else
                all.of[place] = stored;
        });
        return all;
    }
    CHASKI_INLINE __m256i signs_of(int run, int rows) const {
        return _mm256_load_si256(reinterpret_cast<const __m256i*>(signs[run]) + rows);
    }
};

// Bytes above zero, or below it where the bit of `bits` is set in `signs`: 127, or 127 plus this bit.
CHASKI_INLINE __m256i below_zero_where(__m256i signs, uint64_t bits) {
    const __m256i own = _mm256_and_si256(signs, _mm256_set1_epi64x(static_cast<int64_t>(bits)));
    return _mm256_add_epi8(own, _mm256_set1_epi8(127));
}

// Byte B of each row of quad Q of 8 rows, in 8 bytes.
template <int Q, int B>
CHASKI_INLINE __m256i bytes_of_quad(__m256i a) {
    constexpr int64_t kCopies = 0x0101010101010101, kFirst = 8 * Q + B;
    return _mm256_shuffle_epi8(a, _mm256_setr_epi64x(kCopies * kFirst, kCopies * (kFirst + 4),
                                                     kCopies * kFirst, kCopies * (kFirst + 4)));
}
// Byte B of each row, in 4 bytes.
template <int B>
CHASKI_INLINE __m256i bytes_of_rows(__m256i a) {
    return copy_byte<B>(U8x64{a, a}).lo;
}

// Entry B of four or eight rows. An instruction that blends a register
// with memory needs no other one to move the entry to its place.
template <class Format, int B, class Indices>
CHASKI_INLINE __m256i entries_of(const Indices& indices) {
    constexpr int kSize = Format::Entries::kElements, kCount = 16 / kSize;
    const auto half = [&](int first) __attribute__((always_inline)) {
        const auto entry = [&](int place) __attribute__((always_inline)) {
            return kEntryLevels<Format>.entry(indices.template get<B>(first + place)) - kSize * place;
        };
        __m128i all = kSize == 8 ? _mm_loadl_epi64(reinterpret_cast<const __m128i*>(entry(0)))
                                 : _mm_cvtsi32_si128(read<int32_t>(entry(0)));
        unroll<kCount - 1>([&](auto i) __attribute__((always_inline)) {
            constexpr int kPlace = i + 1, kMask = kSize == 8 ? 0x0c : 1 << kPlace;
            all = _mm_blend_epi32(all, load_128(entry(kPlace)), kMask);
        });
        return all;
    };
    return _mm256_set_m128i(half(kCount), half(0));
}

// The sums of sub-block S of a run, of 8 rows, for N tokens `stride` apart, of entries with 8 elements.
template <int S, class Format, int N>
CHASKI_INLINE void sum_entries_of_eight(const EntryParts<Format>& parts, int run, int rows,
                                        const int8_t* values, int64_t stride, __m256i (&sums)[N]) {
    constexpr int kSteps = Format::kSub / 8;
    const __m256i own = parts.signs_of(run, rows);
    __m256i total[2][N];
    unroll<2>([&](auto q) __attribute__((always_inline)) {
        const auto indices = parts.template indices_of<4>(
            run, 0, rows, [q](int place) { return 2 * q + place / 2 * 4 + place % 2; });
        __m256i pairs[N];
        unroll<kSteps>([&](auto step) __attribute__((always_inline)) {
            constexpr int kEntry = S * kSteps + step;
            __m256i levels = entries_of<Format, kEntry>(indices);
            __m256i signs = bytes_of_quad<q.value, kEntry>(own);
            if constexpr (Format::kHasDeltas)
                levels = _mm256_or_si256(levels, signs);
            else
                signs = below_zero_where(signs, 0x8040201008040201);
            for (int n = 0; n < N; ++n) {
                __m256i x = _mm256_set1_epi64x(read<int64_t>(values + n * stride + 8 * kEntry));
                if constexpr (!Format::kHasDeltas) x = _mm256_sign_epi8(x, signs);
                add_levels<kMaxLevel<Format>, step.value, kSteps>(total[q][n], pairs[n], levels, x);
            }
        });
    });
    for (int n = 0; n < N; ++n) sums[n] = _mm256_hadd_epi32(total[0][n], total[1][n]);
}

// The same, of entries with 4 elements and runs without parts, of all 16 rows: both halves of the rows share
// the activations in registers.
template <class Format, int N>
CHASKI_INLINE void sum_entries_of_four(const EntryParts<Format>& parts, int run, const int8_t* values,
                                       int64_t stride, __m256i (&sums)[2][N]) {
    static_assert(Format::kSub == 32 && !Format::kHasDeltas);
    __m256i pairs[2][N];
    unroll<2>([&](auto half) __attribute__((always_inline)) {
        __m256i x[4][N];
        unroll<4 * N>([&](auto i) __attribute__((always_inline)) {
            const int8_t* four = values + i % N * stride + 16 * half + 4 * (i / N);
            x[i / N][i % N] = _mm256_set1_epi32(read<int32_t>(four));
        });
        unroll<2>([&](auto rows) __attribute__((always_inline)) {
            const __m256i own = parts.signs_of(run, rows);
            const auto indices =
                parts.template indices_of<8>(run, half, rows, [](int place) { return place; });
            unroll<4>([&](auto i) __attribute__((always_inline)) {
                constexpr int kEntry = 4 * half + i;
                const __m256i levels = entries_of<Format, i.value>(indices);
                const __m256i signs =
                    below_zero_where(bytes_of_rows<kEntry / 2>(own), 0x0804020108040201 << 4 * (kEntry % 2));
                for (int n = 0; n < N; ++n) {
                    add_levels<kMaxLevel<Format>, kEntry, 8>(sums[rows][n], pairs[rows][n], levels,
                                                             _mm256_sign_epi8(x[i][n], signs));
                }
            });
        });
    });
}

// The integer sums of all sub-blocks of a block, or with deltas, of codes without the offset. Loops keep the
// instructions few: a processor decodes many of them more slowly than it executes them.
template <class Format, int N>
__attribute__((noinline)) static void sum_entries(Format block, const int8_t* values, int64_t stride,
                                                  I32x16 (&isum)[Format::kElements / Format::kSub][N]) {
    constexpr int kSubs = 32 / Format::kSub;
    const EntryParts<Format> parts(block);
    for (int run = 0; run < EntryParts<Format>::kRuns; ++run) {
        const auto store = [&](int sub, int rows, const __m256i(&sums)[N]) __attribute__((always_inline)) {
            for (int n = 0; n < N; ++n) {
                auto* to = reinterpret_cast<__m256i*>(&isum[kSubs * run + sub][n]) + rows;
                _mm256_storeu_si256(to, sums[n]);
            }
        };
        if constexpr (Format::Entries::kElements == 4) {
            __m256i sums[2][N];
            sum_entries_of_four(parts, run, values + 32 * run, stride, sums);
            for (int rows = 0; rows < 2; ++rows) store(0, rows, sums[rows]);
        } else {
            for (int rows = 0; rows < 2; ++rows) {
                unroll<kSubs>([&](auto s) __attribute__((always_inline)) {
                    __m256i sums[N];
                    sum_entries_of_eight<s.value>(parts, run, rows, values + 32 * run, stride, sums);
                    store(s, rows, sums);
                });
            }
        }
    }
}
#else
inline constexpr bool kSumsEntries = false;
#endif

}  // namespace chaski::CHASKI_ISA
