// Rounds activations to int8 in blocks of 32 or super-blocks of 256, by the rule in matmul.h. A thread has
// eight elements of a row, four threads have a block of 32, and a warp has a super-block.
#pragma once

#include "kernel.h"

namespace chaski::CHASKI_ISA {

// The place of the int8 form, as in `Activations` of matmul.h. `values` is null if nothing reads the int8
// form.
struct Quantized {
    int8_t* values;
    float* scales;
    int16_t* sums;
    SuperScale* supers;
};

constexpr int kEach = 8;  // elements of a thread
constexpr int kMostShift = 4;
constexpr float kMostMagnitudes = 1023.0f;

// Reads neighbouring elements at once; their address is a multiple of 16.
template <int kCount>
CHASKI_INLINE void load_each(const float* from, float (&x)[kCount]) {
    for (int i = 0; i < kCount; i += 4) {
        const auto four = *reinterpret_cast<const float4*>(from + i);
        x[i] = four.x;
        x[i + 1] = four.y;
        x[i + 2] = four.z;
        x[i + 3] = four.w;
    }
}
CHASKI_INLINE void store_each(float* to, const float (&x)[kEach]) {
    for (int i = 0; i < kEach; i += 4) {
        *reinterpret_cast<float4*>(to + i) = {x[i], x[i + 1], x[i + 2], x[i + 3]};
    }
}

CHASKI_INLINE int32_t largest_of(const float (&x)[kEach]) {
    int32_t bits = 0;
    for (const float v : x) bits = max(splat(bits), magnitude_bits({v})).v;
    return bits;
}

CHASKI_INLINE int32_t largest_of_block(int32_t bits) {
    for (int apart = 1; apart < 4; apart *= 2) bits = max(splat(bits), {device::from_thread(bits, apart)}).v;
    return bits;
}

// Adding 1.5 · 2²³ rounds numbers below 2²², ties to even. The low bits of the sum are those of the result.
constexpr float kWhole = 12582912.0f;

// Rounds x times a factor. `*sum` and `*magnitudes` are the exact sums of the result and of its magnitudes.
CHASKI_INLINE void round_each(const float (&x)[kEach], float factor, float (&rounded)[kEach], float* sum,
                              float* magnitudes) {
    *sum = *magnitudes = 0.0f;
    for (int i = 0; i < kEach; ++i) {
        rounded[i] = x[i] * factor + kWhole;
        const float v = rounded[i] - kWhole;
        *sum += v;
        *magnitudes += device::as_float(magnitude_bits({v}).v);
    }
}

CHASKI_INLINE void store_values(int8_t* to, const float (&rounded)[kEach]) {
    uint32_t words[2] = {};
    for (int i = 0; i < kEach; ++i) {
        words[i / 4] |= (static_cast<uint32_t>(device::as_int(rounded[i])) & 255) << 8 * (i % 4);
    }
    *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
}

CHASKI_INLINE float power_of_two(int exponent) { return device::as_float((127 + exponent) << 23); }

// x: the elements from number `at` of all rows on. All threads of a warp must call it, even if their elements
// do not exist.
CHASKI_INLINE void quantize_block(const float (&x)[kEach], uint64_t at, bool exists, const Quantized& to) {
    const float amax = device::as_float(largest_of_block(largest_of(x)));
    float rounded[kEach] = {}, sum = 0.0f, magnitudes;
    if (amax >= 1e-36f && amax < infinity()) round_each(x, 127.0f / amax, rounded, &sum, &magnitudes);
    sum += device::from_thread(sum, 1);
    if (!exists) return;
    store_values(to.values + at, rounded);
    if (at % 32 == 0) to.scales[at / 32] = amax < 1e-36f ? 0.0f : amax / 127.0f;
    if (at % 16 == 0) to.sums[at / 16] = static_cast<int16_t>(sum);
}

CHASKI_INLINE void quantize_super_block(const float (&x)[kEach], uint64_t at, bool exists,
                                        const Quantized& to) {
    const int32_t own_largest = largest_of(x), largest = largest_of_block(own_largest);
    const float amax = device::as_float(device::largest_of_warp(own_largest));
    float whole = amax / 127.0f;
    float rounded[kEach] = {}, own = 0.0f;
    int shift = 0;
    if (!(amax >= 1e-34f && amax < infinity())) {  // the same in all threads of a warp
        whole = amax < 1e-34f ? 0.0f : whole;
    } else {
        for (bool is_done = false; !is_done;) {
            const float inverse = 1.0f / whole, to_parts = 16.0f / (127.0f * whole);
            const float part =
                device::as_float(largest) * to_parts;  // in units of the range that shift 0 has
            shift = (part > 1.0f) + (part > 2.0f) + (part > 4.0f) + (part > 8.0f);
            float magnitudes;
            uint32_t over = 0;
            for (bool is_coarser = true; is_coarser;) {
                float total;
                round_each(x, inverse * power_of_two(kMostShift - shift), rounded, &own, &total);
                total += device::from_thread(total, 1);
                const float other = device::from_thread(total, 2);
                magnitudes = total > other ? total : other;
                const bool is_over = magnitudes > kMostMagnitudes, has_next = is_over && shift < kMostShift;
                over = device::votes(is_over);
                is_coarser = over != 0 && device::votes(has_next) != 0;
                if (has_next) ++shift;
            }
            is_done = over == 0;
            if (!is_done) {
                int first = 0;
                while ((over >> first & 1) == 0) ++first;
                whole *= device::value_of(magnitudes, first) / 1007.0f;
            }
        }
    }
    const auto sum = static_cast<int32_t>(own + device::from_thread(own, 1));
    const int32_t block_sum = (sum + device::from_thread(sum, 2)) << shift;
    if (!exists) return;
    store_values(to.values + at, rounded);
    SuperScale& super = to.supers[at / kSuperElements];
    const float unit = whole * 0.0625f;
    const int block = static_cast<int>(at % kSuperElements / 32);
    if (at % kSuperElements == 0) super.unit = unit;
    if (at % 16 == 0) to.sums[at / 16] = static_cast<int16_t>(sum);
    if (at % 32 != 0) return;
    to.scales[at / 32] = unit * power_of_two(shift);
    super.shifts[block] = static_cast<int16_t>(shift);
    super.sums[block] = static_cast<int16_t>(block_sum);
}

// Quantizes in the form that the program is compiled for.
CHASKI_INLINE void quantize(const float (&x)[kEach], int64_t at, bool exists, const Quantized& to) {
    if constexpr (CHASKI_SUPER_BLOCKS) {
        quantize_super_block(x, at, exists, to);
    } else {
        quantize_block(x, at, exists, to);
    }
}

}  // namespace chaski::CHASKI_ISA
