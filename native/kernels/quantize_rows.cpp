// Activations to int8 in blocks of 32 or super-blocks of 256, by the rule in matmul.h.
//
// 256 elements take each step together: the maxima of their 16 vectors, and then the sums, are computed at
// once.
#include "entry_points.h"
#include "simd.h"

namespace chaski::CHASKI_ISA {
namespace {

constexpr int kBlocks = kSuperElements / 32, kHalves = 2 * kBlocks;  // a vector each

// A block of 32 whose amax is below this counts as zero.
constexpr float kTiny = 1e-36f;

// Zero, infinite, or NaN.
bool is_unusable(float amax, float tiny) { return !(amax >= tiny && amax < __builtin_inff()); }

void clear(int8_t* values, int16_t* sums, int count) {
    __builtin_memset(values, 0, count);
    __builtin_memset(sums, 0, count / 16 * sizeof(int16_t));
}

// The bits of max |x| of each block of 256 elements, as integers; NaN is the highest.
void find_largest(const float* x, int32_t (&largest)[kBlocks]) {
    I32x16 magnitudes[kHalves];
    for (int h = 0; h < kHalves; ++h) magnitudes[h] = magnitude_bits(load_f32(x + kLanes * h));
    int32_t halves[kHalves];
    store_i32(halves, max_each(magnitudes));
    for (int b = 0; b < kBlocks; ++b) {
        const int32_t low = halves[2 * b], high = halves[2 * b + 1];
        largest[b] = low > high ? low : high;
    }
}

// A block of 32.
void quantize_block(const float* x, int8_t* values, float* scale, int16_t* sums) {
    const int32_t bits = reduce_max(max(magnitude_bits(load_f32(x)), magnitude_bits(load_f32(x + kLanes))));
    const auto amax = __builtin_bit_cast(float, bits);
    *scale = amax < kTiny ? 0.0f : amax / 127.0f;
    if (is_unusable(amax, kTiny)) return clear(values, sums, 32);
    const F32x16 factor = splat(127.0f / amax);
    for (int half = 0; half < 2; ++half) {
        const I32x16 q = round_to_i32(load_f32(x + kLanes * half) * factor);
        store_i8(values + kLanes * half, q);
        sums[half] = static_cast<int16_t>(reduce_add(q));
    }
}

// Quantizes the blocks of 32 of 256 elements together, or one by one if a block is unusable.
void quantize_blocks(const float* x, int8_t* values, float* scales, int16_t* sums) {
    int32_t largest[kBlocks];
    find_largest(x, largest);
    float factors[kBlocks];
    bool has_unusable = false;
    for (int b = 0; b < kBlocks; ++b) {
        const auto amax = __builtin_bit_cast(float, largest[b]);
        scales[b] = amax / 127.0f;
        factors[b] = 127.0f / amax;
        has_unusable |= is_unusable(amax, kTiny);
    }
    if (has_unusable) {
        for (int b = 0; b < kBlocks; ++b) {
            quantize_block(x + 32 * b, values + 32 * b, scales + b, sums + 2 * b);
        }
        return;
    }
    I32x16 quantized[kHalves];
    for (int h = 0; h < kHalves; ++h) {
        quantized[h] = round_to_i32(load_f32(x + kLanes * h) * splat(factors[h / 2]));
        store_i8(values + kLanes * h, quantized[h]);
    }
    int32_t totals[kHalves];
    store_i32(totals, add_each(quantized));
    for (int h = 0; h < kHalves; ++h) sums[h] = static_cast<int16_t>(totals[h]);
}

constexpr int kMostShift = 4, kMostMagnitudes = 1023;

// The factor that multiplies x in a block with this shift; `inverse` is 1 / whole.
float factor_of(float inverse, int shift) { return inverse * static_cast<float>(1 << (kMostShift - shift)); }

// Stores the 16 values factor * x. The lanes of the result add up to the sum of the values plus 2^16 times
// the sum of their magnitudes; both fit 16 bits.
CHASKI_INLINE I32x16 quantize_half(const float* x, float factor, int8_t* values) {
    const F32x16 scaled = load_f32(x) * splat(factor);
    const I32x16 q = round_to_i32(scaled);
    store_i8(values, q);
    const I32x16 magnitude = round_to_i32(bit_cast_f32(magnitude_bits(scaled)));
    return shift_left<16>(magnitude) + q;
}

int sum_of(int32_t both) { return static_cast<int16_t>(both); }
int magnitudes_of(int32_t both) { return (both - sum_of(both)) >> 16; }

// A block of 32 of a super-block. Returns the larger sum of magnitudes of its halves.
int quantize_block(const float* x, float factor, int8_t* values, int16_t* sums) {
    int most = 0;
    for (int half = 0; half < 2; ++half) {
        const int at = kLanes * half;
        const int32_t both = reduce_add(quantize_half(x + at, factor, values + at));
        sums[half] = static_cast<int16_t>(sum_of(both));
        most = most > magnitudes_of(both) ? most : magnitudes_of(both);
    }
    return most;
}

// Quantizes all blocks of a super-block with this `whole`, each with the least shift that keeps the sum of
// magnitudes within the limit. Returns 0, or the sum of magnitudes of the first block that exceeds the limit
// even with the largest shift.
int shift_blocks(const float* x, float whole, const int32_t (&largest)[kBlocks], int8_t* values,
                 int16_t* sums, int16_t* shifts) {
    const float inverse = 1.0f / whole, to_parts = 16.0f / (127.0f * whole);
    float factors[kBlocks];
    for (int b = 0; b < kBlocks; ++b) {
        // Shift 0 has room for parts of at most 1, and each further shift for twice as much.
        const float part = __builtin_bit_cast(float, largest[b]) * to_parts;
        const int shift = (part > 1.0f) + (part > 2.0f) + (part > 4.0f) + (part > 8.0f);
        shifts[b] = static_cast<int16_t>(shift);
        factors[b] = factor_of(inverse, shift);
    }
    I32x16 totals[kHalves];
    for (int h = 0; h < kHalves; ++h) {
        totals[h] = quantize_half(x + kLanes * h, factors[h / 2], values + kLanes * h);
    }
    int32_t both[kHalves];
    store_i32(both, add_each(totals));
    int magnitudes[kHalves], most = 0;
    for (int h = 0; h < kHalves; ++h) {
        sums[h] = static_cast<int16_t>(sum_of(both[h]));
        magnitudes[h] = magnitudes_of(both[h]);
        most = most > magnitudes[h] ? most : magnitudes[h];
    }
    if (most <= kMostMagnitudes) return 0;
    for (int b = 0; b < kBlocks; ++b) {
        const int low = magnitudes[2 * b], high = magnitudes[2 * b + 1];
        most = low > high ? low : high;
        while (most > kMostMagnitudes && shifts[b] < kMostShift) {
            const float factor = factor_of(inverse, ++shifts[b]);
            most = quantize_block(x + 32 * b, factor, values + 32 * b, sums + 2 * b);
        }
        if (most > kMostMagnitudes) return most;
    }
    return 0;
}

void quantize_super_block(const float* x, int8_t* values, float* scales, int16_t* sums, SuperScale* super) {
    int32_t largest[kBlocks], bits = 0;
    find_largest(x, largest);
    for (const int32_t own : largest) bits = own > bits ? own : bits;
    const auto amax = __builtin_bit_cast(float, bits);
    float whole = amax / 127.0f;
    if (is_unusable(amax, 1e-34f)) {
        whole = amax < 1e-34f ? 0.0f : whole;
        clear(values, sums, kSuperElements);
        for (int16_t& shift : super->shifts) shift = 0;
    } else {
        // A block's magnitudes then add up to at most (over + 8) / (over / 1007) + 8 < 1023.
        while (const int over = shift_blocks(x, whole, largest, values, sums, super->shifts)) {
            whole *= static_cast<float>(over) / 1007.0f;
        }
    }
    super->unit = whole * 0.0625f;
    for (int b = 0; b < kBlocks; ++b) {
        const int shift = super->shifts[b];
        scales[b] = super->unit * static_cast<float>(1 << shift);
        super->sums[b] = static_cast<int16_t>((sums[2 * b] + sums[2 * b + 1]) << shift);
    }
}

}  // namespace

void quantize_rows(const float* x, int64_t n, int64_t k, const Activations& out) {
    int64_t at = 0;
    for (; at + kSuperElements <= n * k; at += kSuperElements) {
        int8_t* values = out.values + at;
        float* scales = out.scales + at / 32;
        int16_t* sums = out.sums + at / 16;
        if (out.supers == nullptr) {
            quantize_blocks(x + at, values, scales, sums);
        } else {
            quantize_super_block(x + at, values, scales, sums, out.supers + at / kSuperElements);
        }
    }
    for (; at < n * k; at += 32) {
        quantize_block(x + at, out.values + at, out.scales + at / 32, out.sums + at / 16);
    }
}

}  // namespace chaski::CHASKI_ISA
