// Activations to int8 in blocks of 32 or in super-blocks of 256, by the rule in matmul.h.
#include "kernel.h"

namespace chaski::CHASKI_ISA {

struct Quantize {
    const float* x;
    Count n;
    int64_t k;
    int8_t* values;
    float* scales;
    int16_t* sums;
    SuperScale* supers;
};

constexpr int kEach = 8;  // elements of a thread: four threads have a block of 32, a warp a super-block
constexpr int kMostShift = 4, kMostMagnitudes = 1023;

CHASKI_INLINE int32_t largest_of_block(int32_t bits) {
    for (int apart = 1; apart < 4; apart *= 2) bits = max(splat(bits), {device::from_thread(bits, apart)}).v;
    return bits;
}

CHASKI_INLINE void store_values(int8_t* to, const int32_t (&q)[kEach]) {
    uint32_t words[2] = {};
    for (int i = 0; i < kEach; ++i) words[i / 4] |= (static_cast<uint32_t>(q[i]) & 255) << 8 * (i % 4);
    *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
}

CHASKI_INLINE int32_t load_elements(const float* from, bool exists, float (&x)[kEach]) {
    int32_t bits = 0;
    for (int i = 0; i < kEach; ++i) {
        x[i] = exists ? from[i] : 0.0f;
        const int32_t own = magnitude_bits({x[i]}).v;
        bits = own > bits ? own : bits;
    }
    return bits;
}

CHASKI_INLINE float power_of_two(int exponent) { return device::as_float((127 + exponent) << 23); }

CHASKI_KERNEL(quantize_blocks, Quantize) {
    const int64_t at = thread() * kEach;
    const bool exists = at < *a.n * a.k;
    float x[kEach];
    const float amax = device::as_float(largest_of_block(load_elements(a.x + at, exists, x)));
    const bool is_usable = amax >= 1e-36f && amax < infinity();
    const float factor = is_usable ? 127.0f / amax : 0.0f;
    int32_t q[kEach], sum = 0;
    for (int i = 0; i < kEach; ++i) sum += q[i] = is_usable ? device::round(x[i] * factor) : 0;
    sum += device::from_thread(sum, 1);
    if (!exists) return;
    store_values(a.values + at, q);
    if (at % 32 == 0) a.scales[at / 32] = amax < 1e-36f ? 0.0f : amax / 127.0f;
    if (at % 16 == 0) a.sums[at / 16] = static_cast<int16_t>(sum);
}

CHASKI_KERNEL(quantize_super_blocks, Quantize) {
    const int64_t at = thread() * kEach, super = at / kSuperElements;
    const bool exists = at < *a.n * a.k;
    float x[kEach];
    const int32_t largest = largest_of_block(load_elements(a.x + at, exists, x));
    int32_t bits = largest;
    for (int apart = 4; apart < 32; apart *= 2) {
        const int32_t other = device::from_thread(bits, apart);
        bits = other > bits ? other : bits;
    }
    const float amax = device::as_float(bits);
    float whole = amax / 127.0f;
    int32_t q[kEach] = {}, sum = 0;
    int shift = 0;
    if (!(amax >= 1e-34f && amax < infinity())) {  // the same in all threads of a warp
        whole = amax < 1e-34f ? 0.0f : whole;
    } else {
        for (bool is_done = false; !is_done;) {
            const float inverse = 1.0f / whole, to_parts = 16.0f / (127.0f * whole);
            const float part = device::as_float(largest) * to_parts;  // of the least that shift 0 has room for
            shift = (part > 1.0f) + (part > 2.0f) + (part > 4.0f) + (part > 8.0f);
            int32_t magnitudes = 0;
            for (bool fits = false; device::votes(!fits) != 0;) {
                const float factor = inverse * power_of_two(kMostShift - shift);
                int32_t own = 0, total = 0;
                for (int i = 0; i < kEach; ++i) {
                    q[i] = device::round(x[i] * factor);
                    own += q[i];
                    total += q[i] < 0 ? -q[i] : q[i];
                }
                sum = own + device::from_thread(own, 1);
                total += device::from_thread(total, 1);
                const int32_t other = device::from_thread(total, 2);
                magnitudes = total > other ? total : other;
                fits = magnitudes <= kMostMagnitudes || shift == kMostShift;
                if (!fits) ++shift;
            }
            const uint32_t over = device::votes(magnitudes > kMostMagnitudes);
            is_done = over == 0;
            if (!is_done) {
                int first = 0;
                while ((over >> first & 1) == 0) ++first;
                whole *= static_cast<float>(device::value_of(magnitudes, first)) / 1007.0f;
            }
        }
    }
    const int32_t block_sum = (sum + device::from_thread(sum, 2)) << shift;
    if (!exists) return;
    store_values(a.values + at, q);
    SuperScale& to = a.supers[super];
    const float unit = whole * 0.0625f;
    const int block = static_cast<int>(at % kSuperElements) / 32;
    if (at % kSuperElements == 0) to.unit = unit;
    if (at % 16 == 0) a.sums[at / 16] = static_cast<int16_t>(sum);
    if (at % 32 != 0) return;
    a.scales[at / 32] = unit * power_of_two(shift);
    to.shifts[block] = static_cast<int16_t>(shift);
    to.sums[block] = static_cast<int16_t>(block_sum);
}

}  // namespace chaski::CHASKI_ISA
