// Activations to int8 in blocks of 32, by the rule in matmul.h.
#include "entry_points.h"
#include "simd.h"

namespace chaski::CHASKI_ISA {

// One block: 32 values, its scale, and the sums of its two halves.
CHASKI_INLINE void quantize_block(const float* x, bool in_powers, int8_t* values, float* scale,
                                  int16_t* sums) {
    const F32x16 a = load_f32(x), b = load_f32(x + 16);
    const int32_t bits = reduce_max(max(magnitude_bits(a), magnitude_bits(b)));
    const float amax = __builtin_bit_cast(float, bits);
    *scale = amax < 1e-36f ? 0.0f : amax / 127.0f;
    if (!(amax >= 1e-36f && amax < __builtin_inff())) {  // zero, infinite, or NaN
        __builtin_memset(values, 0, 32);
        sums[0] = sums[1] = 0;
        return;
    }
    float factor = 127.0f / amax;
    if (in_powers) {
        const uint32_t above = __builtin_bit_cast(uint32_t, *scale) + 0x7fffff;
        *scale = __builtin_bit_cast(float, above & 0x7f800000);
        factor = 1.0f / *scale;
    }
    const I32x16 qa = round_to_i32(a * splat(factor)), qb = round_to_i32(b * splat(factor));
    store_i8(values, qa);
    store_i8(values + 16, qb);
    sums[0] = static_cast<int16_t>(reduce_add(qa));
    sums[1] = static_cast<int16_t>(reduce_add(qb));
}

void quantize_rows(const float* x, int64_t n, int64_t k, const Activations& out) {
    for (int64_t block = 0; block < n * (k / 32); ++block) {
        quantize_block(x + 32 * block, out.in_powers, out.values + 32 * block, out.scales + block,
                       out.sums + 2 * block);
    }
}

}  // namespace chaski::CHASKI_ISA
