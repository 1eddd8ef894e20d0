// The turning of heads by angles (CHASKI_PAIRS of elements, CHASKI_NEOX) and their way to storage.
#pragma once

#include "storage.h"

namespace chaski::CHASKI_ISA {

// Writes the elements x(i) of one head with a group of 16 lanes. Both groups of a warp must call it, even if
// the head of one does not exist.
template <DType T, class Load>
CHASKI_INLINE void write_head(const Storage& storage, int64_t head, int64_t cell, bool exists,
                              const Load& x) {
    const StorageOf<T> to{storage};
    if constexpr (T == DType::I16) {
        float scale;
        const float factor = factor_of(storage.size, storage.in_panels == 0, x, &scale);
        for (int64_t first = 0; first < storage.size && exists; first += kLanes) {
            const int64_t i = first + lane();
            if (first + kLanes > storage.size && i >= storage.size) continue;
            const int32_t q = factor == 0.0f ? 0 : device::round(x(i) * factor);
            *reinterpret_cast<int16_t*>(to.element(head, cell, i)) = static_cast<int16_t>(q);
        }
        if (exists && lane() == 0) to.scales(head)[cell] = scale;
    } else if constexpr (StorageOf<T>::kInBlocks) {
        for (int64_t first = 0; first < storage.size; first += 32) {
            const Encoded block = encode_block<T>(x, first);
            if (!exists) continue;
            const int64_t at = first / 32 * StorageOf<T>::kBlockBytes;
            if (T != DType::Q3_0 || lane() < 12) {
                *to.byte_of_row(head, cell, at + 2 + lane()) = to.flipped(block.low);
            }
            if (T == DType::Q8_0) *to.byte_of_row(head, cell, at + 18 + lane()) = to.flipped(block.high);
            const uint16_t half = device::narrow_f16(block.d);
            if (lane() < 2) *to.byte_of_row(head, cell, at + lane()) = half >> 8 * lane() & 255;
        }
    } else {
        for (int64_t first = 0; first < storage.size && exists; first += kLanes) {
            const int64_t i = first + lane();
            if (i < storage.size) store_element<T>(to.element(head, cell, i), x(i));
        }
    }
}

#if defined(CHASKI_PAIRS)

constexpr int kPairs = CHASKI_PAIRS;  // of elements to turn; 0 turns nothing

// The elements of a head that a lane has: every 16th.
template <int kSize>
struct OwnElements {
    static constexpr int kCount = (kSize + kLanes - 1) / kLanes;
    float v[kCount];

    CHASKI_INLINE static int number(int i) { return i * kLanes + lane(); }
    CHASKI_INLINE static bool exists(int i) { return kSize % kLanes == 0 || number(i) < kSize; }

    CHASKI_INLINE explicit OwnElements(const float* x) {
        for (int i = 0; i < kCount; ++i) v[i] = exists(i) ? x[number(i)] : 0.0f;
    }
    // Reads the elements and turns them by the angles of a token.
    CHASKI_INLINE OwnElements(const float* x, const float* angles) {
        constexpr int kApart = CHASKI_NEOX ? kPairs : 1;
        for (int i = 0; i < kCount; ++i) {
            const int at = number(i);
            v[i] = 0.0f;
            if (!exists(i)) continue;
            if (at >= 2 * kPairs) {
                v[i] = x[at];
                continue;
            }
            const bool is_first = CHASKI_NEOX ? at < kPairs : at % 2 == 0;
            const int first = is_first ? at : at - kApart, pair = CHASKI_NEOX ? first : first / 2;
            const float cos = angles[pair], sin = angles[kPairs + pair];
            const float a = x[first], b = x[first + kApart];
            v[i] = is_first ? a * cos - b * sin : a * sin + b * cos;
        }
    }
    // Element number `at` of the head, which must belong to this lane.
    CHASKI_INLINE float operator()(int64_t at) const {
        float found = 0.0f;
        for (int i = 0; i < kCount; ++i) found = at / kLanes == i ? v[i] : found;
        return found;
    }
};

// A storage whose layout the compiler knows.
template <int kSize>
CHASKI_INLINE Storage sized(Storage storage, bool in_panels) {
    storage.size = kSize;
    storage.in_panels = in_panels;
    return storage;
}

#endif

}  // namespace chaski::CHASKI_ISA
