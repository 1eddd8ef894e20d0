// Keys and values of a layer: the layout of KVStorage in ops.h, and elements of its types.
#pragma once

#include "kernel.h"

namespace chaski::CHASKI_ISA {

// CHASKI_KEYS and CHASKI_VALUES are F32, F16 or BF16; Q8_0, Q4_0 or Q3_0, in blocks of 32 elements; or I16,
// which has a scale for each cell.
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
    // The bytes of a block, and the number of units of four bytes of its codes. The scale precedes the codes
    // in a row, and follows them in a panel.
    static constexpr bool kInBlocks = is_quantized(T);
    static constexpr int kBlockBytes = find_format(T)->bytes, kUnits = kBlockBytes / 4;

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
    // The panel of a cell, from the cell's lane on. Elements of one cell are 16 lanes apart.
    CHASKI_INLINE uint8_t* lane_of(int64_t head, int64_t cell) const {
        constexpr int kUnit = T == DType::I16 || kInBlocks ? 4 : kBytes;
        return this->head(head) + cell / kLanes * panel_bytes(T, s.size) + cell % kLanes * kUnit;
    }
    CHASKI_INLINE uint8_t* row(int64_t head, int64_t cell) const {
        return this->head(head) + cell * row_bytes(T, s.size);
    }
    // The address of byte `i` of a cell's row, in rows or panels.
    CHASKI_INLINE uint8_t* byte_of_row(int64_t head, int64_t cell, int64_t i) const {
        if (!s.in_panels) return row(head, cell) + i;
        const int64_t block = i / kBlockBytes;
        const auto at = static_cast<int>(i % kBlockBytes);
        uint8_t* lines =
            this->head(head) + cell / kLanes * panel_bytes(T, s.size) + block * kLanes * kBlockBytes;
        if (at < 2) return lines + 4 * kLanes * kUnits + cell % kLanes * 2 + at;
        return lines + (at - 2) / 4 * 4 * kLanes + cell % kLanes * 4 + (at - 2) % 4;
    }
    CHASKI_INLINE float block_scale(int64_t head, int64_t cell, int64_t block) const {
        const uint8_t* half = byte_of_row(head, cell, block * kBlockBytes);
        return device::widen_f16(static_cast<uint16_t>(half[0] | half[1] << 8));
    }
    // Codes of panels have their signs flipped.
    CHASKI_INLINE uint8_t flipped(uint8_t code) const {
        return T == DType::Q8_0 && s.in_panels ? code ^ 0x80 : code;
    }
    // An element of a row in blocks.
    CHASKI_INLINE float decoded(int64_t head, int64_t cell, int64_t i) const {
        const int64_t block = i / 32, at = i % 32;
        if constexpr (T == DType::Q3_0) {
            int code = 0;
            for (int n = 0; n < 3; ++n) {
                const int64_t place = block * kBlockBytes + 2 + 4 * n + at % 4;
                code |= (*byte_of_row(head, cell, place) >> at / 4 & 1) << n;
            }
            return static_cast<float>(code - 4) * block_scale(head, cell, block);
        }
        const int64_t place = block * kBlockBytes + 2 + (T == DType::Q8_0 ? at : at % 16);
        const uint8_t byte = flipped(*byte_of_row(head, cell, place));
        const int code = T == DType::Q8_0 ? static_cast<int8_t>(byte) : (byte >> at / 16 * 4 & 15) - 8;
        return static_cast<float>(code) * block_scale(head, cell, block);
    }
    CHASKI_INLINE uint8_t* element(int64_t head, int64_t cell, int64_t i) const {
        if (!s.in_panels) return row(head, cell) + i * kBytes;
        if (T == DType::I16) return lane_of(head, cell) + i / 2 * 64 + i % 2 * 2;
        return lane_of(head, cell) + i * kLanes * kBytes;
    }
};

// Combines the lanes of a group with f, over the tree of simd_cuda.h. Both groups of a warp must call it and
// read the result: with a mask for each half, threads would have to find the others with the same mask.
template <class T, class F>
CHASKI_INLINE T over_lanes(T v, const F& f) {
    for (int apart = 8; apart > 0; apart /= 2) v = f(v, device::from_thread(v, apart));
    return v;
}

// A spread below this limit counts as zero: its scale in half precision is zero.
CHASKI_INLINE float inverse_scale(float d) { return (d < 0.0f ? -d : d) > 1e-15f ? 1.0f / d : 0.0f; }

// Block `i` of a head, encoded by a group of 16 lanes: its scale, and this lane's bytes of codes, `low` at
// its place and `high` 16 after it. The rounding is that of native/kernels/storage.cpp.
struct Encoded {
    float d;
    uint8_t low;
    uint8_t high;
};

// The largest magnitude becomes level 127; halves round away from zero.
CHASKI_INLINE int32_t level_of(float x) {
    const int32_t whole = static_cast<int32_t>(x);
    const float rest = x - static_cast<float>(whole);
    return rest >= 0.5f ? whole + 1 : rest <= -0.5f ? whole - 1 : whole;
}

template <class Load>
CHASKI_INLINE Encoded encode_q8_0(const Load& x, int64_t first) {
    const float own[2] = {x(first + lane()), x(first + lane() + 16)};
    float largest = 0.0f;
    for (const float v : own) largest = (v < 0.0f ? -v : v) > largest ? (v < 0.0f ? -v : v) : largest;
    largest = over_lanes(largest, [](float v, float other) { return v > other ? v : other; });
    const float d = largest / 127.0f, scale = inverse_scale(d);
    return {d, static_cast<uint8_t>(level_of(own[0] * scale)),
            static_cast<uint8_t>(level_of(own[1] * scale))};
}

// The scale at which the first value of largest magnitude becomes level -extreme_level, whatever its sign,
// and the codes of this lane's two values: levels from -lowest to lowest - 1, plus `lowest`.
struct Levels {
    float d;
    int32_t codes[2];
};

CHASKI_INLINE Levels levels_of(const float (&own)[2], float extreme_level, float lowest) {
    float extreme = 0.0f;
    int place = 32;
    const auto take = [&](float v, int at) {
        const float size = v < 0.0f ? -v : v, known = extreme < 0.0f ? -extreme : extreme;
        if (size > known || (size == known && size > 0.0f && at < place)) {
            extreme = v;
            place = at;
        }
    };
    take(own[0], lane());
    take(own[1], lane() + 16);
    for (int apart = 8; apart > 0; apart /= 2) {
        const float other = device::from_thread(extreme, apart);
        take(other, device::from_thread(place, apart));
    }
    const float d = extreme / -extreme_level, scale = inverse_scale(d), last = 2 * lowest - 1;
    const auto code = [&](float v) {
        const float level = v * scale + (lowest + 0.5f);
        return static_cast<int32_t>(level > 0.0f ? level < last ? level : last : 0.0f);
    };
    return {d, {code(own[0]), code(own[1])}};
}

template <class Load>
CHASKI_INLINE Encoded encode_q4_0(const Load& x, int64_t first) {
    const float own[2] = {x(first + lane()), x(first + lane() + 16)};
    const Levels levels = levels_of(own, 8.0f, 8.0f);
    return {levels.d, static_cast<uint8_t>(levels.codes[0] | levels.codes[1] << 4), 0};
}

// `low` is byte l of the three units, for lanes l below 12.
template <class Load>
CHASKI_INLINE Encoded encode_q3_0(const Load& x, int64_t first) {
    const float own[2] = {x(first + lane()), x(first + lane() + 16)};
    const Levels levels = levels_of(own, 4.2f, 4.0f);
    uint32_t found = 0;
    for (int n = 0; n < 3; ++n) {
        const uint32_t bits = (levels.codes[0] >> n & 1) | (levels.codes[1] >> n & 1) << 4;
        const uint32_t unit = over_lanes(bits << (lane() % 4 * 8 + lane() / 4),
                                         [](uint32_t v, uint32_t other) { return v | other; });
        if (lane() / 4 == n) found = unit >> lane() % 4 * 8;
    }
    return {levels.d, static_cast<uint8_t>(found), 0};
}

template <DType T, class Load>
CHASKI_INLINE Encoded encode_block(const Load& x, int64_t first) {
    if constexpr (T == DType::Q8_0) return encode_q8_0(x, first);
    if constexpr (T == DType::Q4_0) return encode_q4_0(x, first);
    return encode_q3_0(x, first);
}

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

// The factor that multiplies x of `size` elements by the rule of integers.h, for a group of 16 lanes.
// `*scale` multiplies the resulting integers. A row with an unusable magnitude has the factor 0.
constexpr float kKeyLength = 46000.0f, kKeyLimit = 32767.0f, kValueLimit = 8191.0f;
constexpr float kWeightLimit = 32767.0f, kWeightSum = 262080.0f, kWeightSumForKeys = 65472.0f;

CHASKI_INLINE bool is_usable(float amax) { return amax >= 1e-15f && amax <= 1e15f; }
CHASKI_INLINE float unusable_scale(float amax) { return amax < 1e-15f ? 0.0f : device::as_float(0x7fc00000); }

CHASKI_INLINE float factor_by(float amax, float squares, bool is_value, float* scale) {
    const float length = device::square_root(squares);
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

// The factor from the magnitudes and squares that each lane has found.
CHASKI_INLINE float factor_by(I32x16 magnitudes, float squares, bool is_value, float* scale) {
    return factor_by(device::as_float(reduce_max(magnitudes)), sum_lanes({squares}), is_value, scale);
}

template <class Load>
CHASKI_INLINE float factor_of(int64_t size, bool is_value, const Load& x, float* scale) {
    int32_t bits = 0;
    float squares = 0.0f;
    for (int64_t first = 0; first < size; first += kLanes) {
        const float v = first + lane() < size ? x(first + lane()) : 0.0f;
        bits = max(splat(bits), magnitude_bits({v})).v;
        squares = device::fma(v, v, squares);
    }
    bits = over_lanes(bits, [](int32_t v, int32_t other) { return v > other ? v : other; });
    squares = over_lanes(squares, [](float v, float other) { return v + other; });
    return factor_by(device::as_float(bits), squares, is_value, scale);
}

}  // namespace chaski::CHASKI_ISA
