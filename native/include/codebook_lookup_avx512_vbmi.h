// The functions of codebook_lookup.h for AVX-512 with VBMI, which looks up 64 bytes at once in 128 bytes of a
// table, and takes 64 fields of bits from any place.
//
// An entry consists of one byte in each of two planes: levels of 2 bits of elements 0 to 3 and of 4 to 7, or
// the two low bits of four levels and the four high bits. Four indices of 16 rows are looked up at once, and
// a line of codes is a lookup of fields of the planes. The compiler shares the lookups of planes between
// lines.
#pragma once

#include "codebook.h"

namespace chaski::CHASKI_ISA {

template <class Book>
struct Planes {
    alignas(64) uint8_t of[2][Book::kEntries] = {};

    constexpr Planes() {
        for (int i = 0; i < Book::kEntries; ++i) {
            for (int j = 0; j < Book::kElements; ++j) {
                const int level = Book::level(i, j);
                of[j / 4][i] |= (level & 3) << 2 * (j % 4);
                if (Book::kLines == 1) of[1][i] |= (level >> 2) << j;
            }
        }
    }
};
template <class Book>
constexpr Planes<Book> kPlanes;

// The byte of a plane for each of 64 indices.
template <int kEntries>
CHASKI_INLINE __m512i look_up(const uint8_t* plane, U8x64 low, U8x64 high) {
    if constexpr (kEntries == 128) {
        return _mm512_permutex2var_epi8(_mm512_load_si512(plane), low.v, _mm512_load_si512(plane + 64));
    } else {
        const __m512i first = look_up<kEntries / 2>(plane, low, high);
        const __m512i second = look_up<kEntries / 2>(plane + kEntries / 2, low, high);
        const __mmask64 is_second = kEntries == 256
                                        ? _mm512_movepi8_mask(low.v)
                                        : _mm512_test_epi8_mask(high.v, _mm512_set1_epi8(kEntries / 512));
        return _mm512_mask_blend_epi8(is_second, first, second);
    }
}

// Byte j of every lane: the eight bits of the lane from bit From + kStep * j on. Bits outside of the lane are
// those of its neighbour.
template <int From, int kStep>
CHASKI_INLINE __m512i fields(__m512i a) {
    constexpr auto kPlaces = [] {
        uint64_t places = 0;
        for (int i = 0; i < 8; ++i) {
            places |= static_cast<uint64_t>((32 * (i / 4) + From + kStep * (i % 4)) & 63) << 8 * i;
        }
        return places;
    }();
    return _mm512_multishift_epi64_epi8(_mm512_set1_epi64(static_cast<int64_t>(kPlaces)), a);
}

// a where bits of the mask are set, and b elsewhere.
CHASKI_INLINE __m512i choose(int mask, __m512i a, __m512i b) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8(static_cast<char>(mask)), a, b, 0xca);
}

// The codes of levels, then the codes if a sign is set, again and again.
template <class Book>
struct SignedCodes {
    alignas(64) uint8_t of[64] = {};

    template <class F>
    constexpr explicit SignedCodes(const F& with_sign) {
        for (int i = 0; i < 64; ++i) {
            const int code = Book::kCodes[i % Book::kLevels];
            of[i] = static_cast<uint8_t>(with_sign(code, i / Book::kLevels % 2 != 0));
        }
    }
};

// Line L of the entries whose indices have byte B of `low` as low byte, and byte B of `high` as high byte.
// The sign of element j is bit From + kStep * j of the lanes of `signs`.
template <class Book, int B, int L, int From, int kStep>
CHASKI_INLINE U8x64 look_up_codes(U8x64 low, U8x64 high, U8x64 signs, const SignedCodes<Book>& codes) {
    constexpr int kBits = Book::kLines == 1 ? 3 : 2;
    const auto& planes = kPlanes<Book>.of;
    __m512i index = fields<8 * B, 2>(look_up<Book::kEntries>(planes[L], low, high));
    if constexpr (Book::kLines == 1) {
        index = choose(3, index, fields<8 * B - 2, 1>(look_up<Book::kEntries>(planes[1], low, high)));
    }
    index = choose((1 << kBits) - 1, index, fields<From - kBits, kStep>(signs.v));
    return {_mm512_permutexvar_epi8(index, _mm512_load_si512(codes.of))};
}

// Mirrored where the sign is set: code c becomes kTop - c.
template <class Book, int B, int L, int From, int kTop>
CHASKI_INLINE U8x64 signed_entries(U8x64 low, U8x64 high, U8x64 signs) {
    static constexpr SignedCodes<Book> kCodes(
        [](int code, bool is_set) { return is_set ? kTop - code : code; });
    return look_up_codes<Book, B, L, From, 1>(low, high, signs, kCodes);
}

// Plus 2, or 0 where bit From is set.
template <class Book, int B, int L, int From>
CHASKI_INLINE U8x64 shifted_entries(U8x64 low, U8x64 high, U8x64 signs) {
    static constexpr SignedCodes<Book> kCodes([](int code, bool is_set) { return is_set ? code : code + 2; });
    return look_up_codes<Book, B, L, From, 0>(low, high, signs, kCodes);
}

// Four fields of `Width` bits, from bit From of each lane on, as its four bytes.
template <int From, int Width>
CHASKI_INLINE U8x64 spread(I32x16 a) {
    return {_mm512_and_si512(fields<From, Width>(a.v), _mm512_set1_epi8((1 << Width) - 1))};
}

struct EighthSigns {
    alignas(64) uint8_t of[128] = {};

    constexpr EighthSigns() {
        for (int i = 0; i < 128; ++i) of[i] = static_cast<uint8_t>(i | (__builtin_popcount(i) & 1) << 7);
    }
};
constexpr EighthSigns kEighthSigns;

// Seven signs in each byte. The eighth makes their number even.
CHASKI_INLINE U8x64 with_eighth_sign(U8x64 signs) { return {look_up<128>(kEighthSigns.of, signs, signs)}; }

}  // namespace chaski::CHASKI_ISA
