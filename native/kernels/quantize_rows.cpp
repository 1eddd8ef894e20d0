// Activations to int8 in blocks of 32 or super-blocks of 256, by the rule in matmul.h.
#include "entry_points.h"
#include "simd.h"

namespace chaski::CHASKI_ISA {
namespace {

// Zero, infinite, or NaN.
bool is_unusable(float amax, float tiny) { return !(amax >= tiny && amax < __builtin_inff()); }

CHASKI_INLINE float largest_magnitude(const float* x) {
    const int32_t bits = reduce_max(max(magnitude_bits(load_f32(x)), magnitude_bits(load_f32(x + kLanes))));
    return __builtin_bit_cast(float, bits);
}

// 16 values, which are factor * x; their sum, and that of their magnitudes.
struct Totals {
    int sum;
    int magnitudes;
};
CHASKI_INLINE Totals quantize_half(const float* x, F32x16 factor, int8_t* values) {
    const F32x16 scaled = load_f32(x) * factor;
    const I32x16 q = round_to_i32(scaled);
    store_i8(values, q);
    // Both sums at once: neither passes 16 bits.
    const I32x16 magnitude = round_to_i32(bit_cast_f32(magnitude_bits(scaled)));
    const int32_t both = reduce_add(shift_left<16>(magnitude) + q);
    const int sum = static_cast<int16_t>(both);
    return {sum, (both - sum) >> 16};
}

void quantize_block(const float* x, int8_t* values, float* scale, int16_t* sums) {
    const float amax = largest_magnitude(x);
    *scale = amax < 1e-36f ? 0.0f : amax / 127.0f;
    if (is_unusable(amax, 1e-36f)) {
        __builtin_memset(values, 0, 32);
        sums[0] = sums[1] = 0;
        return;
    }
    const F32x16 factor = splat(127.0f / amax);
    for (int half = 0; half < 2; ++half) {
        const I32x16 q = round_to_i32(load_f32(x + kLanes * half) * factor);
        store_i8(values + kLanes * half, q);
        sums[half] = static_cast<int16_t>(reduce_add(q));
    }
}

constexpr int kBlocks = kSuperElements / 32, kMostShift = 4, kMostMagnitudes = 1023;
constexpr float kPowers[] = {1.0f, 2.0f, 4.0f, 8.0f, 16.0f};

// A block of 32 by the least shift that does, from `shift` on. Returns 0, or its sum of magnitudes if none
// does.
CHASKI_INLINE int shift_block(const float* x, float inverse, int shift, int8_t* values, int16_t* sums,
                              int16_t* used) {
    for (;; ++shift) {
        const F32x16 factor = splat(inverse * kPowers[kMostShift - shift]);
        const Totals low = quantize_half(x, factor, values);
        const Totals high = quantize_half(x + kLanes, factor, values + kLanes);
        const int magnitudes = low.magnitudes > high.magnitudes ? low.magnitudes : high.magnitudes;
        if (magnitudes <= kMostMagnitudes) {
            sums[0] = static_cast<int16_t>(low.sum);
            sums[1] = static_cast<int16_t>(high.sum);
            *used = static_cast<int16_t>(shift);
            return 0;
        }
        if (shift == kMostShift) return magnitudes;
    }
}

void quantize_super_block(const float* x, int8_t* values, float* scales, int16_t* sums, SuperScale* super) {
    float largest[kBlocks];
    int32_t bits = 0;
    for (int b = 0; b < kBlocks; ++b) {
        largest[b] = largest_magnitude(x + 32 * b);
        const auto own = __builtin_bit_cast(int32_t, largest[b]);  // NaN is above infinity
        bits = own > bits ? own : bits;
    }
    const auto amax = __builtin_bit_cast(float, bits);
    float whole = amax / 127.0f;
    if (is_unusable(amax, 1e-34f)) {
        whole = amax < 1e-34f ? 0.0f : whole;
        __builtin_memset(values, 0, kSuperElements);
        __builtin_memset(sums, 0, 2 * kBlocks * sizeof(int16_t));
        for (int16_t& shift : super->shifts) shift = 0;
    } else {
        for (;;) {
            const float inverse = 1.0f / whole, to_parts = 16.0f / (127.0f * whole);
            int over = 0;
            for (int b = 0; b < kBlocks && over == 0; ++b) {
                const float part = largest[b] * to_parts;  // of the least that shift 0 has room for
                const int shift = (part > 1.0f) + (part > 2.0f) + (part > 4.0f) + (part > 8.0f);
                over =
                    shift_block(x + 32 * b, inverse, shift, values + 32 * b, sums + 2 * b, super->shifts + b);
            }
            if (over == 0) break;
            // A block's magnitudes then add up to at most (over + 8) / (over / 1007) + 8 < 1023.
            whole *= static_cast<float>(over) / 1007.0f;
        }
    }
    super->unit = whole * 0.0625f;
    for (int b = 0; b < kBlocks; ++b) {
        scales[b] = super->unit * kPowers[super->shifts[b]];
        super->sums[b] = static_cast<int16_t>((sums[2 * b] + sums[2 * b + 1]) << super->shifts[b]);
    }
}

}  // namespace

void quantize_rows(const float* x, int64_t n, int64_t k, const Activations& out) {
    for (int64_t at = 0; at < n * k; at += out.supers == nullptr ? 32 : kSuperElements) {
        int8_t* values = out.values + at;
        float* scales = out.scales + at / 32;
        int16_t* sums = out.sums + at / 16;
        if (out.supers == nullptr) {
            quantize_block(x + at, values, scales, sums);
        } else {
            quantize_super_block(x + at, values, scales, sums, out.supers + at / kSuperElements);
        }
    }
}

}  // namespace chaski::CHASKI_ISA
