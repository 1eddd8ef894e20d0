// Lookup of codes in codebooks by reading a dword of memory for each row.
#pragma once

#include "codebook.h"

namespace chaski::CHASKI_ISA {

// The codes of all entries, in the first-level cache.
template <class Book>
struct EntryCodes {
    alignas(64) uint32_t of[Book::kEntries * Book::kLines] = {};

    constexpr EntryCodes() {
        for (int i = 0; i < Book::kEntries * Book::kElements; ++i) {
            const int level = Book::level(i / Book::kElements, i % Book::kElements);
            of[i / 4] |= static_cast<uint32_t>(Book::kCodes[level]) << 8 * (i % 4);
        }
    }
};
template <class Book>
constexpr EntryCodes<Book> kEntryCodes;

// Line L of the entries whose indices have byte B of `low` as low byte, and byte B of `high` as high byte.
template <class Book, int B, int L>
CHASKI_INLINE U8x64 entries(U8x64 low, U8x64 high) {
    I32x16 index = byte<B>(low);
    if constexpr (Book::kEntries > 256) index = index | shift_left<8>(byte<B>(high));
    if constexpr (Book::kLines > 1) return gather_of_two<L>(kEntryCodes<Book>.of, index);
    return gather(kEntryCodes<Book>.of, index);
}

// The same, mirrored where one of four bits from bit From of the lanes of `signs` on is set: code c becomes
// kTop - c.
template <class Book, int B, int L, int From, int kTop>
CHASKI_INLINE U8x64 signed_entries(U8x64 low, U8x64 high, U8x64 signs) {
    return mirror<From>(entries<Book, B, L>(low, high), signs, kTop);
}

// The same plus 2, or 0 where bit From of the lanes of `signs` is set.
template <class Book, int B, int L, int From>
CHASKI_INLINE U8x64 shifted_entries(U8x64 low, U8x64 high, U8x64 signs) {
    return entries<Book, B, L>(low, high) |
           delta_of_sign(copy_byte<0>(as_bytes(bits<From, 1>(as_i32(signs)))));
}

// Four fields of `Width` bits, from bit From of each lane on, as its four bytes.
template <int From, int Width>
CHASKI_INLINE U8x64 spread(I32x16 a) {
    constexpr int kMask = (1 << Width) - 1;
    const I32x16 halves = bits<From, 2 * Width>(a) | shift_left<16>(bits<From + 2 * Width, 2 * Width>(a));
    return as_bytes((halves & splat(kMask | kMask << 16)) |
                    (shift_left<8 - Width>(halves) & splat(kMask << 8 | kMask << 24)));
}

// Seven signs in each byte. The eighth makes their number even.
CHASKI_INLINE U8x64 with_eighth_sign(U8x64 signs) {
    alignas(16) constexpr uint8_t kParity[16] = {0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0};
    const I32x16 low = as_i32(lookup(kParity, field<0, 4>(signs)));
    const I32x16 high = as_i32(lookup(kParity, field<4, 3>(signs)));
    return signs | field<0, 1, 7>(as_bytes(low + high));
}

}  // namespace chaski::CHASKI_ISA
