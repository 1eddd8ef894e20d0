// The codebooks as codes, whose lookup depends on the instruction set.
#pragma once

#include "block.h"
#include "codebooks.h"

namespace chaski::CHASKI_ISA {

// The codes of the levels of a codebook: levels plus the largest level. Those of IQ1 are 8 times the level,
// plus 8, and a delta of 0 or 2 is added.
constexpr uint8_t kIQ1Codes[] = {0, 8, 16, 0};
constexpr uint8_t kIQ2Codes[] = {43 + 8, 43 + 25, 43 + 43, 0};
constexpr uint8_t kIQ3_XXSCodes[] = {62 + 4, 62 + 12, 62 + 20, 62 + 28, 62 + 36, 62 + 44, 62 + 52, 62 + 62};
constexpr uint8_t kIQ3_SCodes[] = {15 + 1, 15 + 3, 15 + 5, 15 + 7, 15 + 9, 15 + 11, 15 + 13, 15 + 15};

// The words and codes of a codebook, and its sizes.
template <const auto& kOfWords, const auto& kOfLevels>
struct Book {
    static constexpr const auto& kWords = kOfWords;
    static constexpr const auto& kCodes = kOfLevels;
    static constexpr int kEntries = sizeof(kWords) / sizeof(kWords[0]);
    static constexpr int kLevels = sizeof(kCodes);
    static constexpr int kLines = kLevels == 4 ? 2 : 1;  // dwords of an entry
    static constexpr int kElements = 4 * kLines;

    static constexpr int level(int entry, int element) {
        return kWords[entry] >> (kLevels == 4 ? 2 : 3) * element & (kLevels - 1);
    }
};
using IQ1Book = Book<kIQ1_SWords, kIQ1Codes>;
using IQ2_XXSBook = Book<kIQ2_XXSWords, kIQ2Codes>;
using IQ2_XSBook = Book<kIQ2_XSWords, kIQ2Codes>;
using IQ2_SBook = Book<kIQ2_SWords, kIQ2Codes>;
using IQ3_XXSBook = Book<kIQ3_XXSWords, kIQ3_XXSCodes>;
using IQ3_SBook = Book<kIQ3_SWords, kIQ3_SCodes>;

// 2, or 0 where a byte is 1.
CHASKI_INLINE U8x64 delta_of_sign(U8x64 signs) {
    alignas(16) constexpr uint8_t kDeltas[16] = {2, 0};
    return lookup(kDeltas, signs);
}

}  // namespace chaski::CHASKI_ISA
