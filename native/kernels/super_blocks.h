// The common parts of the kernels for weights with super-blocks.
//
// All sums of a super-block are integers, so their order does not matter. Products are summed over
// sub-blocks; two such sums fit one lane, and are multiplied by two scales at once (`pairs`, blocks.h).
#pragma once

#include "blocks.h"
#include "matmul.h"
#include "simd.h"

namespace chaski::CHASKI_ISA {

// Numbers that a super-block needs from a token in addition to its int8 values. Kernels broadcast them from
// memory.
struct alignas(64) SuperTerms {
    int32_t starts[16];  // -offset * sum of values of each sub-block: its initial sum
    int32_t sums[8];     // pairs of shifted sums of values, which multiply the mins
    int32_t shifts[4];   // of each two blocks of 32, for shift_pairs
    float unit;

    // Fills the numbers of the super-block that begins with `element` of all tokens' elements. kMinSub is 0
    // without mins; types with mins have no offset.
    template <int kSub, int kMinSub>
    CHASKI_INLINE void fill(const Activations& x, int64_t element, int offset) {
        const SuperScale& super = x.supers[element / kSuperElements];
        const int16_t* halves = x.sums + element / 16;
        unit = super.unit;
        __builtin_memcpy(shifts, super.shifts, sizeof(super.shifts));
        if constexpr (kMinSub == 0) {
            static_assert(kSub == 16);
            int32_t own[16];  // a local array has no aliases, so the compiler vectorizes
            for (int s = 0; s < 16; ++s) own[s] = -offset * halves[s];
            __builtin_memcpy(starts, own, sizeof(starts));
        } else if constexpr (kMinSub == 32) {
            __builtin_memcpy(sums, super.sums, sizeof(super.sums));
        } else {
            for (int p = 0; p < 8; ++p) {
                const int first = 2 * p - p % 2;
                const int low = halves[first] << super.shifts[first / 2];
                const int high = halves[first + 2] << super.shifts[first / 2 + 1];
                sums[p] = (low & 0xffff) | high << 16;
            }
        }
    }
};

// Two shifts, and two shifted sums, of a token as one number, from its terms or from the activations.
CHASKI_INLINE int32_t shifts_of(const SuperTerms& terms, int pair) { return terms.shifts[pair]; }
CHASKI_INLINE int32_t sums_of(const SuperTerms& terms, int pair) { return terms.sums[pair]; }
CHASKI_INLINE int32_t shifts_of(const SuperScale& super, int pair) {
    return read<int32_t>(super.shifts + 2 * pair);
}
CHASKI_INLINE int32_t sums_of(const SuperScale& super, int pair) {
    return read<int32_t>(super.sums + 2 * pair);
}

// Pair number `pair` of the lines from `lines` on.
CHASKI_INLINE I32x16 load_pairs(const uint8_t* lines, int pair) {
    return load_i32(reinterpret_cast<const int32_t*>(lines + 64 * pair));
}

// Reads from the slab of a super-block.
template <class Slab>
CHASKI_INLINE I32x16 sum_of_mins(const uint8_t* slab, const SuperTerms& terms) {
    I32x16 sum = splat(0);
#pragma GCC unroll 8
    for (int pair = 0; pair < Slab::kMinPairs; ++pair) {
        sum = dot2(sum, load_pairs(slab + Slab::kMins, pair), terms.sums[pair]);
    }
    return sum;
}

// y + the scaled sums of a super-block.
CHASKI_INLINE F32x16 add_scaled(F32x16 y, I32x16 products, F32x16 d, float unit) {
    return fma(to_f32(products) * d, splat(unit), y);
}
CHASKI_INLINE F32x16 add_scaled(F32x16 y, I32x16 products, F32x16 d, I32x16 mins, F32x16 dmin, float unit) {
    return fma(fma(to_f32(mins), dmin, to_f32(products) * d), splat(unit), y);
}

// y = the previous sums, by token number, + the sums of a super-block, whose scales are in its slab.
template <class Slab, int kTokens, class Before>
CHASKI_INLINE void finish_super_block(const uint8_t* slab, const SuperTerms (&terms)[kTokens],
                                      const I32x16 (&products)[kTokens], const Before& before,
                                      F32x16 (&y)[kTokens]) {
    const F32x16 d = load_f32(reinterpret_cast<const float*>(slab + Slab::kD));
    if constexpr (Slab::kMinPairs == 0) {
#pragma GCC unroll 16
        for (int n = 0; n < kTokens; ++n) y[n] = add_scaled(before(n), products[n], d, terms[n].unit);
    } else {
        const F32x16 dmin = load_f32(reinterpret_cast<const float*>(slab + Slab::kDMin));
#pragma GCC unroll 16
        for (int n = 0; n < kTokens; ++n) {
            const I32x16 mins = sum_of_mins<Slab>(slab, terms[n]);
            y[n] = add_scaled(before(n), products[n], d, mins, dmin, terms[n].unit);
        }
    }
}

}  // namespace chaski::CHASKI_ISA
