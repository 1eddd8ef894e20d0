// Reads rows of key/value storage as vectors of float32. The formats are those of files, see panel.h.
#pragma once

#include <cstring>
#include <type_traits>

#include "ops.h"
#include "vector_math.h"

namespace chaski::CHASKI_ISA {

template <DType T>
CHASKI_INLINE F32x16 widen(const void* p) {
    if constexpr (T == DType::F32) return load_f32(static_cast<const float*>(p));
    if constexpr (T == DType::F16) return load_f16(p);
    if constexpr (T == DType::BF16) return load_bf16(p);
}

// The bit of a unit of Q3_0 that belongs to each of 16 elements, and its inverse.
struct BitsOfLanes {
    alignas(64) std::int32_t masks[kLanes];
    alignas(64) float factors[kLanes];

    constexpr BitsOfLanes() : masks(), factors() {
        for (int i = 0; i < kLanes; ++i) {
            masks[i] = 1 << (i % 4 * 8 + i / 4);
            factors[i] = 1.0f / static_cast<float>(masks[i]);
        }
    }
};
inline constexpr BitsOfLanes kBitsOfLanes;

// The codes of the first or the last 16 elements of a block, from its three units on.
CHASKI_INLINE F32x16 three_bits(const std::byte* units, bool is_high) {
    const I32x16 masks = load_i32(kBitsOfLanes.masks);
    const auto unit = [&](int n) __attribute__((always_inline)) {
        const auto bits = read<std::uint32_t>(units + 4 * n);
        return splat(static_cast<std::int32_t>(is_high ? bits >> 4 : bits)) & masks;
    };
    const I32x16 codes = unit(0) + shift_left<1>(unit(1)) + shift_left<2>(unit(2));
    return to_f32(codes) * load_f32(kBitsOfLanes.factors);
}

// Elements first to first + 15 of a row of `size` elements; lanes after its end are zero. WHOLE: no lane is
// after the end.
template <DType T, bool WHOLE = false>
CHASKI_INLINE F32x16 load_elements(const std::byte* row, std::int64_t first, std::int64_t size) {
    constexpr std::int64_t kBytes = find_format(T)->bytes;
    static_assert(T != DType::I16, "quantized values mean nothing without their scale");
    if constexpr (is_quantized(T)) {
        const std::byte* block = row + first / 32 * kBytes;
        const bool is_high = first % 32 != 0;
        if constexpr (T == DType::Q8_0) {
            return to_f32(load_i8(block + 2 + first % 32)) * splat_f16(block);
        } else if constexpr (T == DType::Q3_0) {
            return (three_bits(block + 2, is_high) + splat(-4.0f)) * splat_f16(block);
        } else {
            const I32x16 codes = load_bytes(block + 2);
            return to_f32((is_high ? bits<4, 4>(codes) : bits<0, 4>(codes)) + splat(-8)) * splat_f16(block);
        }
    } else {
        if (WHOLE || size - first >= kLanes) return widen<T>(row + first * kBytes);
        std::byte part[kLanes * kBytes] = {};
        std::memcpy(part, row + first * kBytes, (size - first) * kBytes);
        return widen<T>(part);
    }
}

// Calls f(constant of the storage's type), which makes one instance of the caller's loop for each type.
template <class F>
CHASKI_INLINE void with_type(DType type, const F& f) {
    switch (type) {
        case DType::F32:
            return f(std::integral_constant<DType, DType::F32>{});
        case DType::F16:
            return f(std::integral_constant<DType, DType::F16>{});
        case DType::BF16:
            return f(std::integral_constant<DType, DType::BF16>{});
        case DType::I16:
            return f(std::integral_constant<DType, DType::I16>{});
        case DType::Q8_0:
            return f(std::integral_constant<DType, DType::Q8_0>{});
        case DType::Q4_0:
            return f(std::integral_constant<DType, DType::Q4_0>{});
        case DType::Q3_0:
            return f(std::integral_constant<DType, DType::Q3_0>{});
        default:
            return;
    }
}

}  // namespace chaski::CHASKI_ISA
