// The traits of a block format that kernels read: 16 rows at a time (lane = row), from panels (see panel.h).
//
// A format is a struct that is constructed from a block of 16 rows, and defines
//   kType       its type
//   kSub        elements whose products are summed before a scale: 32, or 16 without mins; a block has
//               kElements / kSub sub-blocks
//   kOffset     a weight is scale * (code - kOffset) - min
//   kMaxCode    codes are in 0..kMaxCode
//   kMins       whether there are mins
//   kIsSuper    whether scales and mins are integers times a number of the block
//   kShared     number of consecutive runs of 32 elements in a line of codes: 1, 2, or 4
//   codes<S, I>()   codes of elements 4 I .. 4 I + 3 of sub-block S; I < kSub / 4
//   scale<S>(), min<S>()
//
// and for super-blocks, instead of the last line,
//   kMinSub             elements that share a min: 32 or 16
//   scales<P>(), mins<P>()   as 2 int16 a lane, of pair P of sub-blocks (of kMinSub elements for mins): those
//                       of 32 are the pairs 0 1, 2 3, ..., those of 16 the pairs 0 2, 1 3, 4 6, 5 7, ..., so
//                       that the halves of a pair always belong to two neighbours of 32 elements
//   d(), dmin()         their factors; dmin is below zero, so that mins are added
//
// To add a format, add a row to kFormats (panel.h), a struct to blocks.h, codebook_blocks.h or k_blocks.h,
// and its name to BlockFormats, CodebookFormats or SuperBlockFormats. docs/adding-a-kernel.md walks through
// an example. The formats are ggml's (GGUF files); `line<F>(u)` is unit u of field F in the order of
// kFormats.
#pragma once

#include "panel.h"
#include "simd.h"

namespace chaski::CHASKI_ISA {

template <DType T, int kSubElements, int kCodeOffset, int kLargestCode, bool kHasMins = false,
          int kSharedBy = 1>
struct Block {
    static constexpr DType kType = T;
    static constexpr int kSub = kSubElements;
    static constexpr int kOffset = kCodeOffset;
    static constexpr int kMaxCode = kLargestCode;
    static constexpr bool kMins = kHasMins;
    static constexpr bool kIsSuper = false;
    static constexpr int kShared = kSharedBy;
    static constexpr int kElements = find_format(T)->elements;
    static constexpr int kBytes = kLanes * find_format(T)->bytes;

    const uint8_t* p;
#if defined(CHASKI_CUDA)
    int first = 0;  // is added to the numbers of units
#else
    static constexpr int first = 0;
#endif

    template <int F>
    CHASKI_INLINE const uint8_t* line(int unit = 0) const {
        constexpr Place kPlace = place_of(*find_format(T), F);
        return p + kPlace.start + kPlace.step * (unit + first);
    }
    template <int F>
    CHASKI_INLINE U8x64 load(int unit) const {
        return load_u8(line<F>(unit));
    }
};

// kMinOf: number of elements that share a min, 0 for none.
template <DType T, int kSubElements, int kCodeOffset, int kLargestCode, int kMinOf, int kSharedBy>
struct SuperBlock : Block<T, kSubElements, kCodeOffset, kLargestCode, kMinOf != 0, kSharedBy> {
    static constexpr bool kIsSuper = true;
    static constexpr int kMinSub = kMinOf;
};

// The first sub-block of pair P; the second is kPairStep after it.
template <int kSub>
inline constexpr int kPairStep = 32 / kSub;
template <int kSub, int P>
inline constexpr int first_of_pair = 2 * P - P % kPairStep<kSub>;

// Nibbles of a block of 32: byte j holds element j (low) and element j + 16 (high).
template <int I>
CHASKI_INLINE U8x64 nibbles_of_32(const uint8_t* lines) {
    return field<4 * (I / 4), 4>(load_u8(lines + 64 * (I % 4)));
}

}  // namespace chaski::CHASKI_ISA
