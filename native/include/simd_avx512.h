// simd.h for AVX-512 with VNNI: one register per vector.
#pragma once

#include <immintrin.h>

#include "avx512_instructions.h"

namespace chaski::CHASKI_ISA {

struct F32x16 {
    __m512 v;
};
struct I32x16 {
    __m512i v;
};
struct U8x64 {
    __m512i v;
};

CHASKI_INLINE __mmask16 first_lanes(int count) { return static_cast<__mmask16>((1u << count) - 1); }

CHASKI_INLINE F32x16 load_f32(const float* p) { return {_mm512_loadu_ps(p)}; }
CHASKI_INLINE F32x16 load_f32(const float* p, int count) {
    return {_mm512_maskz_loadu_ps(first_lanes(count), p)};
}
CHASKI_INLINE void store_f32(float* p, F32x16 a) { _mm512_storeu_ps(p, a.v); }
CHASKI_INLINE void store_f32(float* p, F32x16 a, int count) {
    _mm512_mask_storeu_ps(p, first_lanes(count), a.v);
}
CHASKI_INLINE F32x16 load_f16(const void* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
CHASKI_INLINE I32x16 load_u16(const void* p) {
    return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
CHASKI_INLINE I32x16 load_i16(const void* p) {
    return {_mm512_cvtepi16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
CHASKI_INLINE I32x16 load_bytes(const void* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
CHASKI_INLINE I32x16 load_i8(const void* p) {
    return {_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
CHASKI_INLINE F32x16 widen_f16(I32x16 a) { return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(a.v))}; }
// The half-precision number at p in all lanes.
CHASKI_INLINE F32x16 splat_f16(const void* p) {
    return {_mm512_cvtph_ps(_mm256_set1_epi16(read<int16_t>(p)))};
}
CHASKI_INLINE F32x16 load_bf16(const void* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(load_u16(p).v, 16))};
}
CHASKI_INLINE I32x16 load_i32(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
CHASKI_INLINE void store_i32(int32_t* p, I32x16 a) { _mm512_storeu_si512(p, a.v); }
CHASKI_INLINE U8x64 load_u8(const void* p) { return {_mm512_loadu_si512(p)}; }
CHASKI_INLINE void store_u8(void* p, U8x64 a) { _mm512_storeu_si512(p, a.v); }

CHASKI_INLINE F32x16 splat(float x) { return {_mm512_set1_ps(x)}; }
CHASKI_INLINE I32x16 splat(int32_t x) { return {_mm512_set1_epi32(x)}; }

CHASKI_INLINE F32x16 operator+(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
CHASKI_INLINE F32x16 operator-(F32x16 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
CHASKI_INLINE F32x16 operator*(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
CHASKI_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
CHASKI_INLINE F32x16 to_f32(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
CHASKI_INLINE F32x16 bit_cast_f32(I32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
CHASKI_INLINE I32x16 round_to_i32(F32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
CHASKI_INLINE I32x16 truncate_to_i32(F32x16 a) { return {_mm512_cvttps_epi32(a.v)}; }

CHASKI_INLINE I32x16 operator&(I32x16 a, I32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
CHASKI_INLINE I32x16 operator|(I32x16 a, I32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
CHASKI_INLINE I32x16 operator+(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
CHASKI_INLINE I32x16 min(I32x16 a, I32x16 b) { return {_mm512_min_epi32(a.v, b.v)}; }
CHASKI_INLINE I32x16 max(I32x16 a, I32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
template <int N>
CHASKI_INLINE I32x16 shift_left(I32x16 a) {
    return {_mm512_slli_epi32(a.v, N)};
}
template <int From, int Width>
CHASKI_INLINE I32x16 bits(I32x16 a) {
    return {_mm512_and_si512(_mm512_srli_epi32(a.v, From), _mm512_set1_epi32((1 << Width) - 1))};
}

// The bits of |x| of all 16 floats. As integers they have the order of the numbers, with NaN above infinity.
CHASKI_INLINE I32x16 magnitude_bits(F32x16 a) {
    return {_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff))};
}
CHASKI_INLINE int32_t reduce_max(I32x16 a) { return _mm512_reduce_max_epi32(a.v); }
CHASKI_INLINE int32_t reduce_add(I32x16 a) { return _mm512_reduce_add_epi32(a.v); }
// The same for 16 vectors at once: it joins half of the lanes of two vectors, then a quarter of four.
template <class F>
CHASKI_INLINE I32x16 fold_each(const I32x16 (&a)[16], const F& f) {
    __m512i fours[4];  // of vectors i, i + 4, i + 8 and i + 12
    for (int i = 0; i < 4; ++i) {
        const auto eights = [&](__m512i x, __m512i y) __attribute__((always_inline)) {
            return f(_mm512_shuffle_i32x4(x, y, 0x44), _mm512_shuffle_i32x4(x, y, 0xee));
        };
        const __m512i low = eights(a[i].v, a[i + 4].v), high = eights(a[i + 8].v, a[i + 12].v);
        fours[i] = f(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_shuffle_i32x4(low, high, 0xdd));
    }
    const auto twos = [&](__m512i x, __m512i y) __attribute__((always_inline)) {
        return f(_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y));
    };
    const __m512 low = _mm512_castsi512_ps(twos(fours[0], fours[1]));
    const __m512 high = _mm512_castsi512_ps(twos(fours[2], fours[3]));
    return {f(_mm512_castps_si512(_mm512_shuffle_ps(low, high, 0x88)),
              _mm512_castps_si512(_mm512_shuffle_ps(low, high, 0xdd)))};
}
CHASKI_INLINE I32x16 max_each(const I32x16 (&a)[16]) {
    return fold_each(a, [](__m512i x, __m512i y) { return _mm512_max_epi32(x, y); });
}
CHASKI_INLINE I32x16 add_each(const I32x16 (&a)[16]) {
    return fold_each(a, [](__m512i x, __m512i y) { return _mm512_add_epi32(x, y); });
}
// Lanes as int8; they must be in range.
CHASKI_INLINE void store_i8(int8_t* p, I32x16 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
// Lanes as bytes; they must be in 0..255.
CHASKI_INLINE void store_bytes(uint8_t* p, I32x16 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}

// Lanes as int16; they must be in range.
CHASKI_INLINE void store_i16(int16_t* p, I32x16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}

template <int From, int Width, int To = 0>
CHASKI_INLINE U8x64 field(U8x64 a) {
    constexpr int kMask = ((1 << Width) - 1) << To;
    __m512i moved = a.v;
    if constexpr (From > To) moved = _mm512_srli_epi32(a.v, From - To);
    if constexpr (From < To) moved = _mm512_slli_epi32(a.v, To - From);
    return {_mm512_and_si512(moved, _mm512_set1_epi8(static_cast<char>(kMask)))};
}
CHASKI_INLINE U8x64 operator|(U8x64 a, U8x64 b) { return {_mm512_or_si512(a.v, b.v)}; }

CHASKI_INLINE U8x64 subtract_bytes(U8x64 a, int b) {
    return {_mm512_sub_epi8(a.v, _mm512_set1_epi8(static_cast<char>(b)))};
}

CHASKI_INLINE I32x16 as_i32(U8x64 a) { return {a.v}; }
CHASKI_INLINE U8x64 as_bytes(I32x16 a) { return {a.v}; }
CHASKI_INLINE I32x16 times(I32x16 a, int n) {
    return {_mm512_mullo_epi16(a.v, _mm512_set1_epi16(static_cast<int16_t>(n)))};
}
template <int B>
CHASKI_INLINE I32x16 byte(U8x64 a) {
    if constexpr (B == 3) return {_mm512_srli_epi32(a.v, 24)};
    return {_mm512_and_si512(_mm512_srli_epi32(a.v, 8 * B), _mm512_set1_epi32(255))};
}
template <int B>
CHASKI_INLINE I32x16 signed_byte(U8x64 a) {
    return {_mm512_srai_epi32(_mm512_slli_epi32(a.v, 24 - 8 * B), 24)};
}
CHASKI_INLINE U8x64 lookup(const uint8_t* table, U8x64 index) {
    const __m128i entries = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(entries), index.v)};
}

template <int B>
CHASKI_INLINE U8x64 copy_byte(U8x64 a) {
    const __m128i places = _mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    const __m128i own = _mm_add_epi8(places, _mm_set1_epi8(B));
    return {_mm512_shuffle_epi8(a.v, _mm512_broadcast_i32x4(own))};
}
template <int From>
CHASKI_INLINE U8x64 mirror(U8x64 a, U8x64 signs, int top) {
    const __m512i bits = _mm512_set1_epi32(static_cast<int32_t>(0x08040201u << From % 8));
    const __mmask64 is_set = _mm512_test_epi8_mask(copy_byte<From / 8>(signs).v, bits);
    return {_mm512_mask_sub_epi8(a.v, is_set, _mm512_set1_epi8(static_cast<char>(top)), a.v)};
}
CHASKI_INLINE U8x64 gather(const uint32_t* table, I32x16 index) {
    return {_mm512_i32gather_epi32(index.v, table, 4)};
}
// Each load reads both dwords. The compiler shares them between both values of I.
template <int I>
CHASKI_INLINE U8x64 gather_of_two(const uint32_t* table, I32x16 index) {
    // Rows 0, 1, 4, 5, ..., and then the others: so a shuffle within 128 bits yields rows in order.
    const __m512i order = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m512i own = _mm512_permutexvar_epi32(order, index.v);
    const __m512i first = _mm512_i32gather_epi64(_mm512_castsi512_si256(own), table, 8);
    const __m512i second = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(own, 1), table, 8);
    return {_mm512_castps_si512(
        _mm512_shuffle_ps(_mm512_castsi512_ps(first), _mm512_castsi512_ps(second), I == 0 ? 0x88 : 0xdd))};
}

template <int kMaxCode>
inline constexpr int dot4_bias = 0;

template <int kMaxCode>
CHASKI_INLINE I32x16 dot4(I32x16 acc, U8x64 w, int32_t x) {
    return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(x))};
}

CHASKI_INLINE I32x16 dot2(I32x16 acc, I32x16 w, I32x16 x) { return {add_dots(acc.v, w.v, x.v)}; }

CHASKI_INLINE I32x16 pairs(I32x16 a, I32x16 b) {
    return {_mm512_mask_blend_epi16(0xaaaaaaaa, a.v, _mm512_slli_epi32(b.v, 16))};
}
// Shifts use other execution ports than products.
CHASKI_INLINE I32x16 shift_pairs(I32x16 w, int32_t by) {
    return {_mm512_sllv_epi16(w.v, _mm512_set1_epi32(by))};
}

}  // namespace chaski::CHASKI_ISA
