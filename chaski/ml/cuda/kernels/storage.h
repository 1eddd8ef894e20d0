// Keys and values of a layer: the layout of KVStorage in ops.h, and elements of its plain types.
#pragma once

#include "kernel.h"

namespace chaski::CHASKI_ISA {

// CHASKI_KEYS and CHASKI_VALUES are types of kFormats, or I16, whose cells have a scale.
struct Storage {
    uint8_t* data;
    int64_t cells;
    int64_t heads;
    int64_t size;
    int64_t in_panels;
};

template <DType T>
struct StorageOf {
    const Storage s;

    static constexpr int kBytes = find_format(T)->bytes / find_format(T)->elements;  // of an element

    CHASKI_INLINE int64_t row_area() const {
        return s.in_panels ? num_panels(s.cells) * panel_bytes(T, s.size) : s.cells * row_bytes(T, s.size);
    }
    CHASKI_INLINE int64_t head_bytes() const {
        if (T != DType::I16) return row_area();
        return (row_area() + 63) / 64 * 64 + num_panels(s.cells) * 64;
    }
    CHASKI_INLINE uint8_t* head(int64_t head) const { return s.data + head * head_bytes(); }
    CHASKI_INLINE float* scales(int64_t head) const {
        return reinterpret_cast<float*>(s.data + (head + 1) * head_bytes() - num_panels(s.cells) * 64);
    }
    // The panel that has a cell, from its lane on; elements of one cell are 16 lanes apart.
    CHASKI_INLINE uint8_t* lane_of(int64_t head, int64_t cell) const {
        constexpr int kUnit = T == DType::I16 ? 4 : kBytes;
        return this->head(head) + cell / kLanes * panel_bytes(T, s.size) + cell % kLanes * kUnit;
    }
    CHASKI_INLINE uint8_t* row(int64_t head, int64_t cell) const {
        return this->head(head) + cell * row_bytes(T, s.size);
    }
    CHASKI_INLINE uint8_t* element(int64_t head, int64_t cell, int64_t i) const {
        if (!s.in_panels) return row(head, cell) + i * kBytes;
        if (T == DType::I16) return lane_of(head, cell) + i / 2 * 64 + i % 2 * 2;
        return lane_of(head, cell) + i * kLanes * kBytes;
    }
};

template <DType T>
CHASKI_INLINE float load_element(const uint8_t* p) {
    if constexpr (T == DType::F32) return *reinterpret_cast<const float*>(p);
    if constexpr (T == DType::F16) return device::widen_f16(*reinterpret_cast<const uint16_t*>(p));
    return device::as_float(*reinterpret_cast<const uint16_t*>(p) << 16);
}

template <DType T>
CHASKI_INLINE void store_element(uint8_t* p, float x) {
    if constexpr (T == DType::F32) *reinterpret_cast<float*>(p) = x;
    if constexpr (T == DType::F16) *reinterpret_cast<uint16_t*>(p) = device::narrow_f16(x);
    if constexpr (T == DType::BF16) {
        const auto bits = static_cast<uint32_t>(device::as_int(x));
        *reinterpret_cast<uint16_t*>(p) = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

// The rule of integers.h: what x of `size` elements is multiplied by, for a group of 16 lanes. `*scale` is
// what its integers are to be multiplied by; a row that cannot be divided by its size has the factor 0.
constexpr float kKeyLength = 46000.0f, kKeyLimit = 32767.0f, kValueLimit = 8191.0f;
constexpr float kWeightLimit = 32767.0f, kWeightSum = 262080.0f;

CHASKI_INLINE bool is_usable(float amax) { return amax >= 1e-15f && amax <= 1e15f; }
CHASKI_INLINE float unusable_scale(float amax) { return amax < 1e-15f ? 0.0f : device::as_float(0x7fc00000); }

template <class Load>
CHASKI_INLINE float factor_of(int64_t size, bool is_value, const Load& x, float* scale) {
    I32x16 bits = splat(0);
    float squares = 0.0f;
    for (int64_t i = lane(); i < padded(size); i += kLanes) {
        const float v = i < size ? x(i) : 0.0f;
        bits = max(bits, magnitude_bits({v}));
        squares = device::fma(v, v, squares);
    }
    const float amax = device::as_float(reduce_max(bits));
    const float length = device::square_root(sum_lanes({squares}));
    if (!is_usable(amax)) {
        *scale = unusable_scale(amax);
        return 0.0f;
    }
    float factor = kValueLimit / amax;
    if (!is_value) {
        const float by_length = kKeyLength / length, by_size = kKeyLimit / amax;
        factor = by_length < by_size ? by_length : by_size;
    }
    *scale = 1.0f / factor;
    return factor;
}

}  // namespace chaski::CHASKI_ISA
