// simd.h for AVX2 with FMA and F16C, and with AVX-VNNI if available: two registers per vector.
#pragma once

#include <immintrin.h>

namespace chaski::CHASKI_ISA {

struct F32x16 {
    __m256 lo, hi;
};
struct I32x16 {
    __m256i lo, hi;
};
struct U8x64 {
    __m256i lo, hi;
};

CHASKI_INLINE __m256i load_256(const void* p, int half = 0) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p) + half);
}
CHASKI_INLINE __m128i load_128(const void* p, int quarter = 0) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p) + quarter);
}
// All ones in the lanes first..first+7 that are below count.
CHASKI_INLINE __m256i lanes_below(int count, int first) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count - first), lane);
}

CHASKI_INLINE F32x16 load_f32(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
CHASKI_INLINE F32x16 load_f32(const float* p, int count) {
    return {_mm256_maskload_ps(p, lanes_below(count, 0)), _mm256_maskload_ps(p + 8, lanes_below(count, 8))};
}
CHASKI_INLINE void store_f32(float* p, F32x16 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
CHASKI_INLINE void store_f32(float* p, F32x16 a, int count) {
    _mm256_maskstore_ps(p, lanes_below(count, 0), a.lo);
    _mm256_maskstore_ps(p + 8, lanes_below(count, 8), a.hi);
}
CHASKI_INLINE F32x16 load_f16(const void* p) {
    return {_mm256_cvtph_ps(load_128(p, 0)), _mm256_cvtph_ps(load_128(p, 1))};
}
CHASKI_INLINE I32x16 load_u16(const void* p) {
    return {_mm256_cvtepu16_epi32(load_128(p, 0)), _mm256_cvtepu16_epi32(load_128(p, 1))};
}
CHASKI_INLINE I32x16 load_i16(const void* p) {
    return {_mm256_cvtepi16_epi32(load_128(p, 0)), _mm256_cvtepi16_epi32(load_128(p, 1))};
}
CHASKI_INLINE I32x16 load_bytes(const void* p) {
    const __m128i a = load_128(p);
    return {_mm256_cvtepu8_epi32(a), _mm256_cvtepu8_epi32(_mm_srli_si128(a, 8))};
}
CHASKI_INLINE I32x16 load_i8(const void* p) {
    const __m128i a = load_128(p);
    return {_mm256_cvtepi8_epi32(a), _mm256_cvtepi8_epi32(_mm_srli_si128(a, 8))};
}
CHASKI_INLINE F32x16 widen_f16(I32x16 a) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(a.lo, a.hi), 0xd8);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(words)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(words, 1))};
}
// The half-precision number at p in all lanes.
CHASKI_INLINE F32x16 splat_f16(const void* p) {
    const __m256 all = _mm256_cvtph_ps(_mm_set1_epi16(read<int16_t>(p)));
    return {all, all};
}
CHASKI_INLINE F32x16 load_bf16(const void* p) {
    const I32x16 a = load_u16(p);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(a.lo, 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(a.hi, 16))};
}
CHASKI_INLINE I32x16 load_i32(const int32_t* p) { return {load_256(p, 0), load_256(p, 1)}; }
CHASKI_INLINE void store_i32(int32_t* p, I32x16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p) + 1, a.hi);
}
CHASKI_INLINE U8x64 load_u8(const void* p) { return {load_256(p, 0), load_256(p, 1)}; }
CHASKI_INLINE void store_u8(void* p, U8x64 a) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), a.lo);
    _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, a.hi);
}

CHASKI_INLINE F32x16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
CHASKI_INLINE I32x16 splat(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }

CHASKI_INLINE F32x16 operator+(F32x16 a, F32x16 b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
CHASKI_INLINE F32x16 operator-(F32x16 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
}
CHASKI_INLINE F32x16 operator*(F32x16 a, F32x16 b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
CHASKI_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
CHASKI_INLINE F32x16 to_f32(I32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
CHASKI_INLINE F32x16 bit_cast_f32(I32x16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
CHASKI_INLINE I32x16 round_to_i32(F32x16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
CHASKI_INLINE I32x16 truncate_to_i32(F32x16 a) {
    return {_mm256_cvttps_epi32(a.lo), _mm256_cvttps_epi32(a.hi)};
}

CHASKI_INLINE I32x16 operator&(I32x16 a, I32x16 b) {
    return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
CHASKI_INLINE I32x16 operator|(I32x16 a, I32x16 b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
CHASKI_INLINE I32x16 operator+(I32x16 a, I32x16 b) {
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
CHASKI_INLINE I32x16 min(I32x16 a, I32x16 b) {
    return {_mm256_min_epi32(a.lo, b.lo), _mm256_min_epi32(a.hi, b.hi)};
}
CHASKI_INLINE I32x16 max(I32x16 a, I32x16 b) {
    return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
template <int N>
CHASKI_INLINE I32x16 shift_left(I32x16 a) {
    return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)};
}
template <int From, int Width>
CHASKI_INLINE I32x16 bits(I32x16 a) {
    const __m256i mask = _mm256_set1_epi32((1 << Width) - 1);
    return {_mm256_and_si256(_mm256_srli_epi32(a.lo, From), mask),
            _mm256_and_si256(_mm256_srli_epi32(a.hi, From), mask)};
}

// The bits of |x| of all 16 floats. As integers they have the order of the numbers, with NaN above infinity.
CHASKI_INLINE I32x16 magnitude_bits(F32x16 a) {
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    return {_mm256_and_si256(_mm256_castps_si256(a.lo), mask),
            _mm256_and_si256(_mm256_castps_si256(a.hi), mask)};
}
CHASKI_INLINE int32_t reduce_max(I32x16 a) {
    const __m256i m = _mm256_max_epi32(a.lo, a.hi);
    __m128i r = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    r = _mm_max_epi32(r, _mm_shuffle_epi32(r, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(r, _mm_shuffle_epi32(r, 0xb1)));
}
CHASKI_INLINE int32_t reduce_add(I32x16 a) {
    const __m256i m = _mm256_add_epi32(a.lo, a.hi);
    __m128i r = _mm_add_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    r = _mm_add_epi32(r, _mm_shuffle_epi32(r, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(r, _mm_shuffle_epi32(r, 0xb1)));
}
// The same for 16 vectors at once.
template <class F>
CHASKI_INLINE __m256i fold_eight(const I32x16* a, const F& f) {
    const auto twos = [&](int i) __attribute__((always_inline)) {
        const __m256i x = f(a[i].lo, a[i].hi), y = f(a[i + 1].lo, a[i + 1].hi);
        return f(_mm256_unpacklo_epi32(x, y), _mm256_unpackhi_epi32(x, y));
    };
    const auto fours = [&](int i) __attribute__((always_inline)) {
        const __m256i x = twos(i), y = twos(i + 2);
        return f(_mm256_unpacklo_epi64(x, y), _mm256_unpackhi_epi64(x, y));
    };
    const __m256i x = fours(0), y = fours(4);
    return f(_mm256_permute2x128_si256(x, y, 0x20), _mm256_permute2x128_si256(x, y, 0x31));
}
CHASKI_INLINE I32x16 max_each(const I32x16 (&a)[16]) {
    const auto f = [](__m256i x, __m256i y) { return _mm256_max_epi32(x, y); };
    return {fold_eight(a, f), fold_eight(a + 8, f)};
}
CHASKI_INLINE I32x16 add_each(const I32x16 (&a)[16]) {
    const auto f = [](__m256i x, __m256i y) { return _mm256_add_epi32(x, y); };
    return {fold_eight(a, f), fold_eight(a + 8, f)};
}
// Lanes as int8; they must be in range.
CHASKI_INLINE void store_i8(int8_t* p, I32x16 a) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
// Lanes as bytes; they must be in 0..255.
CHASKI_INLINE void store_bytes(uint8_t* p, I32x16 a) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

// Lanes as int16; they must be in range.
CHASKI_INLINE void store_i16(int16_t* p, I32x16 a) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), words);
}

template <int From, int Width, int To = 0>
CHASKI_INLINE __m256i field(__m256i a) {
    constexpr int kMask = ((1 << Width) - 1) << To;
    if constexpr (From > To) a = _mm256_srli_epi32(a, From - To);
    if constexpr (From < To) a = _mm256_slli_epi32(a, To - From);
    return _mm256_and_si256(a, _mm256_set1_epi8(static_cast<char>(kMask)));
}
template <int From, int Width, int To = 0>
CHASKI_INLINE U8x64 field(U8x64 a) {
    return {field<From, Width, To>(a.lo), field<From, Width, To>(a.hi)};
}
CHASKI_INLINE U8x64 operator|(U8x64 a, U8x64 b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}

CHASKI_INLINE I32x16 as_i32(U8x64 a) { return {a.lo, a.hi}; }
CHASKI_INLINE U8x64 as_bytes(I32x16 a) { return {a.lo, a.hi}; }
CHASKI_INLINE I32x16 times(I32x16 a, int n) {
    const __m256i factor = _mm256_set1_epi16(static_cast<int16_t>(n));
    return {_mm256_mullo_epi16(a.lo, factor), _mm256_mullo_epi16(a.hi, factor)};
}
template <int B>
CHASKI_INLINE I32x16 byte(U8x64 a) {
    return bits<8 * B, 8>(as_i32(a));
}
template <int B>
CHASKI_INLINE I32x16 signed_byte(U8x64 a) {
    return {_mm256_srai_epi32(_mm256_slli_epi32(a.lo, 24 - 8 * B), 24),
            _mm256_srai_epi32(_mm256_slli_epi32(a.hi, 24 - 8 * B), 24)};
}
CHASKI_INLINE U8x64 lookup(const uint8_t* table, U8x64 index) {
    const __m256i entries = _mm256_broadcastsi128_si256(load_128(table));
    return {_mm256_shuffle_epi8(entries, index.lo), _mm256_shuffle_epi8(entries, index.hi)};
}

template <int B>
CHASKI_INLINE U8x64 copy_byte(U8x64 a) {
    const __m128i places = _mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    const __m256i own = _mm256_broadcastsi128_si256(_mm_add_epi8(places, _mm_set1_epi8(B)));
    return {_mm256_shuffle_epi8(a.lo, own), _mm256_shuffle_epi8(a.hi, own)};
}
CHASKI_INLINE __m256i mirror(__m256i a, __m256i signs, __m256i bits, __m256i top) {
    const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(signs, bits), bits);
    return _mm256_blendv_epi8(a, _mm256_sub_epi8(top, a), is_set);
}
template <int From>
CHASKI_INLINE U8x64 mirror(U8x64 a, U8x64 signs, int top) {
    const __m256i bits = _mm256_set1_epi32(static_cast<int32_t>(0x08040201u << From % 8));
    const __m256i tops = _mm256_set1_epi8(static_cast<char>(top));
    const U8x64 own = copy_byte<From / 8>(signs);
    return {mirror(a.lo, own.lo, bits, tops), mirror(a.hi, own.hi, bits, tops)};
}
CHASKI_INLINE U8x64 gather(const uint32_t* table, I32x16 index) {
    const auto* entries = reinterpret_cast<const int*>(table);
    return {_mm256_i32gather_epi32(entries, index.lo, 4), _mm256_i32gather_epi32(entries, index.hi, 4)};
}
// Single loads, of both dwords, are faster than gathers. The compiler shares them between both values of I.
template <int I>
CHASKI_INLINE __m128i gather_of_two(const uint32_t* table, __m128i index) {
    const auto entry = [&](uint64_t i) __attribute__((always_inline)) { return table + 2 * i; };
    const auto two = [&](int64_t of_rows) __attribute__((always_inline)) {
        const auto rows = static_cast<uint64_t>(of_rows);
        const __m128 low =
            _mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(entry(rows & 0xffffffff))));
        return _mm_loadh_pi(low, reinterpret_cast<const __m64*>(entry(rows >> 32)));
    };
    const __m128 first = two(_mm_cvtsi128_si64(index)), second = two(_mm_extract_epi64(index, 1));
    return _mm_castps_si128(_mm_shuffle_ps(first, second, I == 0 ? 0x88 : 0xdd));
}
template <int I>
CHASKI_INLINE __m256i gather_of_two(const uint32_t* table, __m256i index) {
    return _mm256_set_m128i(gather_of_two<I>(table, _mm256_extracti128_si256(index, 1)),
                            gather_of_two<I>(table, _mm256_castsi256_si128(index)));
}
template <int I>
CHASKI_INLINE U8x64 gather_of_two(const uint32_t* table, I32x16 index) {
    return {gather_of_two<I>(table, index.lo), gather_of_two<I>(table, index.hi)};
}

#if defined(__AVXVNNI__)  // one instruction that adds in 32 bits and does not saturate
template <int kMaxCode>
inline constexpr int dot4_bias = 0;
template <int kMaxCode>
CHASKI_INLINE I32x16 dot4(I32x16 acc, U8x64 w, int32_t x) {
    const __m256i all = _mm256_set1_epi32(x);
    return {_mm256_dpbusd_avx_epi32(acc.lo, w.lo, all), _mm256_dpbusd_avx_epi32(acc.hi, w.hi, all)};
}
CHASKI_INLINE I32x16 dot2(I32x16 acc, I32x16 w, I32x16 x) {
    return {_mm256_dpwssd_avx_epi32(acc.lo, w.lo, x.lo), _mm256_dpwssd_avx_epi32(acc.hi, w.hi, x.hi)};
}
#else
// vpmaddubsw adds two products in 16 bits, saturating: exact for codes up to 129 (2 * 129 * 127 < 2^15).
// Larger codes are multiplied as signed numbers, code - 128, with the sign moved to the activation.
template <int kMaxCode>
inline constexpr int dot4_bias = kMaxCode > 129 ? 128 : 0;

template <int kMaxCode>
CHASKI_INLINE __m256i dot4(__m256i acc, __m256i w, __m256i x) {
    if constexpr (dot4_bias<kMaxCode> != 0) {
        w = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
        x = _mm256_sign_epi8(x, w);
        w = _mm256_abs_epi8(w);
    }
    const __m256i pairs = _mm256_maddubs_epi16(w, x);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
template <int kMaxCode>
CHASKI_INLINE I32x16 dot4(I32x16 acc, U8x64 w, int32_t x) {
    const __m256i all = _mm256_set1_epi32(x);
    return {dot4<kMaxCode>(acc.lo, w.lo, all), dot4<kMaxCode>(acc.hi, w.hi, all)};
}

// This many products of pairs fit 16 bits, so adding them in 16 bits saves one instruction.
template <int kMaxCode>
inline constexpr int dot4_run = kMaxCode > 127 ? 1 : 32767 / (2 * 127 * kMaxCode);

struct PairSums {
    __m256i lo, hi;
};
template <int kMaxCode>
CHASKI_INLINE PairSums first_pairs(U8x64 w, int32_t x) {
    static_assert(dot4_bias<kMaxCode> == 0);
    const __m256i all = _mm256_set1_epi32(x);
    return {_mm256_maddubs_epi16(w.lo, all), _mm256_maddubs_epi16(w.hi, all)};
}
template <int kMaxCode>
CHASKI_INLINE PairSums add_pairs(PairSums acc, U8x64 w, int32_t x) {
    const PairSums more = first_pairs<kMaxCode>(w, x);
    return {_mm256_add_epi16(acc.lo, more.lo), _mm256_add_epi16(acc.hi, more.hi)};
}
CHASKI_INLINE I32x16 add_sums(I32x16 acc, PairSums sums) {
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(sums.lo, ones)),
            _mm256_add_epi32(acc.hi, _mm256_madd_epi16(sums.hi, ones))};
}

CHASKI_INLINE I32x16 dot2(I32x16 acc, I32x16 w, I32x16 x) {
    return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(w.lo, x.lo)),
            _mm256_add_epi32(acc.hi, _mm256_madd_epi16(w.hi, x.hi))};
}

// With larger codes, dot4 takes four instructions, three of them multiplications. With int16 it takes two,
// one of them a multiplication.
inline constexpr bool kWordsAreFaster = true;
template <int H>
CHASKI_INLINE __m256i words(__m256i a, int offset) {
    const __m256i places = _mm256_broadcastsi128_si256(
        H == 0 ? _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1)
               : _mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1));
    return _mm256_sub_epi16(_mm256_shuffle_epi8(a, places), _mm256_set1_epi16(static_cast<int16_t>(offset)));
}
template <int H>
CHASKI_INLINE I32x16 words(U8x64 a, int offset) {
    return {words<H>(a.lo, offset), words<H>(a.hi, offset)};
}
#endif

CHASKI_INLINE I32x16 pairs(I32x16 a, I32x16 b) {
    return {_mm256_blend_epi16(a.lo, _mm256_slli_epi32(b.lo, 16), 0xaa),
            _mm256_blend_epi16(a.hi, _mm256_slli_epi32(b.hi, 16), 0xaa)};
}
// Shifts by multiplying with powers of two, which the low bytes look up.
CHASKI_INLINE I32x16 shift_pairs(I32x16 w, int32_t by) {
    const __m256i powers =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i factor = _mm256_shuffle_epi8(powers, _mm256_set1_epi32(by | 0x7f007f00));
    return {_mm256_mullo_epi16(w.lo, factor), _mm256_mullo_epi16(w.hi, factor)};
}

}  // namespace chaski::CHASKI_ISA
