// Vector functions for the kernels between the matrix products: division, maxima, choices, exp, sums over
// lanes.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd.h"

namespace chaski::CHASKI_ISA {

// max and min return the second operand when it is NaN, so that no NaN is lost. if_above returns lanes of x
// where a > b, and of y elsewhere.
#if defined(CHASKI_CUDA)
CHASKI_INLINE F32x16 operator/(F32x16 a, F32x16 b) { return {a.v / b.v}; }
CHASKI_INLINE F32x16 max(F32x16 a, F32x16 b) { return {a.v > b.v ? a.v : b.v}; }
CHASKI_INLINE F32x16 min(F32x16 a, F32x16 b) { return {a.v < b.v ? a.v : b.v}; }
#elif defined(__AVX512VNNI__) && defined(__AVX512BW__)
inline constexpr int kRegisters = 32;
CHASKI_INLINE F32x16 operator/(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
CHASKI_INLINE F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
CHASKI_INLINE F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
CHASKI_INLINE F32x16 if_above(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), y.v, x.v)};
}
CHASKI_INLINE void store_f16(uint16_t* p, F32x16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__AVX2__)
inline constexpr int kRegisters = 16;
CHASKI_INLINE F32x16 operator/(F32x16 a, F32x16 b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
CHASKI_INLINE F32x16 max(F32x16 a, F32x16 b) {
    return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
CHASKI_INLINE F32x16 min(F32x16 a, F32x16 b) {
    return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
CHASKI_INLINE F32x16 if_above(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
    return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ)),
            _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))};
}
CHASKI_INLINE void store_f16(uint16_t* p, F32x16 a) {
    auto* to = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(to, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(to + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(CHASKI_NEON)
inline constexpr int kRegisters = 16;  // 32 of half the size
CHASKI_INLINE F32x16 operator/(F32x16 a, F32x16 b) {
    return quarters<F32x16>([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
CHASKI_INLINE F32x16 max(F32x16 a, F32x16 b) {
    return quarters<F32x16>([&](int i) { return vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
CHASKI_INLINE F32x16 min(F32x16 a, F32x16 b) {
    return quarters<F32x16>([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
}
CHASKI_INLINE F32x16 if_above(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
    return quarters<F32x16>([&](int i) { return vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), x.v[i], y.v[i]); });
}
CHASKI_INLINE void store_f16(uint16_t* p, F32x16 a) {
    for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i])));
}
#else
inline constexpr int kRegisters = 16;
CHASKI_INLINE F32x16 operator/(F32x16 a, F32x16 b) { return {a.v / b.v}; }
CHASKI_INLINE F32x16 max(F32x16 a, F32x16 b) { return {a.v > b.v ? a.v : b.v}; }
CHASKI_INLINE F32x16 min(F32x16 a, F32x16 b) { return {a.v < b.v ? a.v : b.v}; }
CHASKI_INLINE F32x16 if_above(F32x16 a, F32x16 b, F32x16 x, F32x16 y) { return {a.v > b.v ? x.v : y.v}; }
// Single to half precision, to nearest even. One float addition rounds subnormal results.
CHASKI_INLINE uint16_t f32_to_f16(float x) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, x);
    const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    const uint32_t rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    if (rest >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);
    if (rest < 0x38800000) {
        const float shifted = __builtin_bit_cast(float, rest) + 0.5f;
        return static_cast<uint16_t>(sign | (__builtin_bit_cast(uint32_t, shifted) - 0x3f000000));
    }
    const uint32_t rounded = rest - 0x38000000 + 0xfff + (rest >> 13 & 1);
    return static_cast<uint16_t>(sign | rounded >> 13);
}
CHASKI_INLINE void store_f16(uint16_t* p, F32x16 a) {
    for (int i = 0; i < 16; ++i) p[i] = f32_to_f16(a.v[i]);
}
#endif

#if !defined(CHASKI_CUDA)
CHASKI_INLINE void store_bf16(uint16_t* p, F32x16 a) {
    uint32_t bits[16];
    std::memcpy(bits, &a, sizeof bits);
    for (int i = 0; i < 16; ++i) p[i] = static_cast<uint16_t>((bits[i] + 0x7fff + (bits[i] >> 16 & 1)) >> 16);
}
#endif

CHASKI_INLINE F32x16 operator-(F32x16 a, F32x16 b) { return a + -b; }

// Rounding to whole numbers, and p · 2^n for whole n of -150 to 127 and p around 1; the result is 0 if n <
// -126.
#if defined(__AVX512VNNI__)
CHASKI_INLINE F32x16 to_whole(F32x16 a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
CHASKI_INLINE F32x16 times_2_to(F32x16 p, F32x16 n) {
    const __mmask16 stays = _mm512_cmp_ps_mask(n.v, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    return {_mm512_maskz_scalef_ps(stays, p.v, n.v)};
}
#else
CHASKI_INLINE F32x16 to_whole(F32x16 a) { return to_f32(round_to_i32(a)); }
CHASKI_INLINE F32x16 times_2_to(F32x16 p, F32x16 n) {
    const I32x16 exponent = max(splat(0), round_to_i32(n) + splat(127));
    return p * bit_cast_f32(shift_left<23>(exponent));
}
#endif

// e^x, to about 2 units in the last place. exp(0) is exactly 1, and exp(-inf) is exactly 0, so that hidden
// tokens add nothing.
//
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its power series, times 2^n. Results below the smallest normal
// number become 0, and x above 88.37 counts as 88.37, which gives 2.4e38.
//
// N vectors take each step together, so that no vector waits for its own previous step.
template <int N>
CHASKI_INLINE void exp_each(F32x16 (&x)[N]) {
    F32x16 n[N], r[N], p[N];
    for (int i = 0; i < N; ++i) x[i] = min(splat(88.37f), max(splat(-104.0f), x[i]));
    for (int i = 0; i < N; ++i) n[i] = to_whole(x[i] * splat(1.44269504f));
    // ln 2 in two parts; the first has few bits, so it is exact.
    for (int i = 0; i < N; ++i) r[i] = fma(n[i], splat(-0.693145752f), x[i]);
    for (int i = 0; i < N; ++i) r[i] = fma(n[i], splat(-1.42860677e-6f), r[i]);
    for (int i = 0; i < N; ++i) p[i] = fma(splat(1.0f / 5040), r[i], splat(1.0f / 720));
    for (int i = 0; i < N; ++i) p[i] = fma(p[i], r[i], splat(1.0f / 120));
    for (int i = 0; i < N; ++i) p[i] = fma(p[i], r[i], splat(1.0f / 24));
    for (int i = 0; i < N; ++i) p[i] = fma(p[i], r[i], splat(1.0f / 6));
    for (int i = 0; i < N; ++i) p[i] = fma(p[i], r[i], splat(0.5f));
    for (int i = 0; i < N; ++i) p[i] = fma(p[i], r[i], splat(1.0f));
    for (int i = 0; i < N; ++i) p[i] = fma(p[i], r[i], splat(1.0f));
    for (int i = 0; i < N; ++i) x[i] = times_2_to(p[i], n[i]);
}
CHASKI_INLINE F32x16 exp(F32x16 x) {
    F32x16 one[1] = {x};
    exp_each(one);
    return one[0];
}

// ln(1 + x) for x of 0 to 1, to about 2 units in the last place.
//
// It is 2 artanh(s) with s = x / (2 + x), at most 1/3; artanh(s) by its power series s + s³/3 + s⁵/5 + ...
CHASKI_INLINE F32x16 log1p(F32x16 x) {
    const F32x16 s = x / (x + splat(2.0f)), square = s * s;
    F32x16 p = splat(1.0f / 17);
    p = fma(p, square, splat(1.0f / 15));
    p = fma(p, square, splat(1.0f / 13));
    p = fma(p, square, splat(1.0f / 11));
    p = fma(p, square, splat(1.0f / 9));
    p = fma(p, square, splat(1.0f / 7));
    p = fma(p, square, splat(1.0f / 5));
    p = fma(p, square, splat(1.0f / 3));
    const F32x16 twice = s + s;
    return fma(p * square, twice, twice);
}

// cap · tanh(x / cap), with tanh(t) = 1 - 2 / (e^2t + 1).
CHASKI_INLINE F32x16 bounded(F32x16 x, float cap) {
    const F32x16 power = exp(x * splat(2.0f / cap));
    return splat(cap) - splat(2.0f * cap) / (power + splat(1.0f));
}

// Sums and maxima of all lanes are taken over a fixed tree, lane i with lane i + 8, and so on, so that every
// instruction set adds in the same order.
#if defined(CHASKI_CUDA)
CHASKI_INLINE float sum_lanes(F32x16 a) {
    return fold_lanes(a.v, [](float x, float y) { return x + y; });
}
CHASKI_INLINE float max_lanes(F32x16 a) {
    return fold_lanes(a.v, [](float x, float y) { return x > y ? x : y; });
}
#elif defined(__AVX2__)
template <class Eights, class Fours>
CHASKI_INLINE float fold_lanes(F32x16 a, const Eights& eights, const Fours& fours) {
#if defined(__AVX512VNNI__)
    const __m256 both = eights(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
#else
    const __m256 both = eights(a.lo, a.hi);
#endif
    __m128 left = fours(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
    left = fours(left, _mm_movehl_ps(left, left));
    left = fours(left, _mm_movehdup_ps(left));
    return _mm_cvtss_f32(left);
}
CHASKI_INLINE float sum_lanes(F32x16 a) {
    return fold_lanes(
        a, [](__m256 x, __m256 y) { return _mm256_add_ps(x, y); },
        [](__m128 x, __m128 y) { return _mm_add_ps(x, y); });
}
CHASKI_INLINE float max_lanes(F32x16 a) {
    return fold_lanes(
        a, [](__m256 x, __m256 y) { return _mm256_max_ps(x, y); },
        [](__m128 x, __m128 y) { return _mm_max_ps(x, y); });
}
#else
template <class F>
CHASKI_INLINE float fold_lanes(F32x16 a, const F& f) {
    float v[16];
    store_f32(v, a);
    for (int width = 8; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) v[i] = f(v[i], v[i + width]);
    }
    return v[0];
}
CHASKI_INLINE float sum_lanes(F32x16 a) {
    return fold_lanes(a, [](float x, float y) { return x + y; });
}
CHASKI_INLINE float max_lanes(F32x16 a) {
    return fold_lanes(a, [](float x, float y) { return x > y ? x : y; });
}
#endif

#if !defined(CHASKI_CUDA)
// Lane r is the maximum of the lanes of vector r.
CHASKI_INLINE F32x16 max_each(const F32x16 (&a)[16]) {
#if defined(__AVX512VNNI__)
    const auto f = [](__m512i x, __m512i y) {
        return _mm512_castps_si512(_mm512_max_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(y)));
    };
    I32x16 same[16];
    for (int i = 0; i < 16; ++i) same[i] = {_mm512_castps_si512(a[i].v)};
    return bit_cast_f32(fold_each(same, f));
#elif defined(__AVX2__)
    const auto f = [](__m256i x, __m256i y) {
        return _mm256_castps_si256(_mm256_max_ps(_mm256_castsi256_ps(x), _mm256_castsi256_ps(y)));
    };
    I32x16 same[16];
    for (int i = 0; i < 16; ++i) same[i] = {_mm256_castps_si256(a[i].lo), _mm256_castps_si256(a[i].hi)};
    return bit_cast_f32({fold_eight(same, f), fold_eight(same + 8, f)});
#else
    float each[16];
    for (int i = 0; i < 16; ++i) each[i] = max_lanes(a[i]);
    return load_f32(each);
#endif
}
#endif

}  // namespace chaski::CHASKI_ISA
