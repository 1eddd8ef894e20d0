// Emulates the two AVX-VNNI instructions that kernels use with AVX2, for tests on processors without them.
// Included before a build's files (tools/test_avx_vnni.sh), it turns the set `avx2` into the set `avx2_vnni`.
#pragma once

#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
#include <immintrin.h>

#define __AVXVNNI__ 1
#define _mm256_dpbusd_avx_epi32 model_of_dpbusd
#define _mm256_dpwssd_avx_epi32 model_of_dpwssd

// Adds the 32-bit products of two int16 to each lane, without saturation.
static inline __m256i model_of_dpwssd(__m256i sum, __m256i a, __m256i b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}

// Adds the products of four bytes of each lane, unsigned in `a` and signed in `b`, without truncation to 16
// bits.
static inline __m256i model_of_dpbusd(__m256i sum, __m256i a, __m256i b) {
    const __m256i low = _mm256_set1_epi16(0xff);
    sum = model_of_dpwssd(sum, _mm256_and_si256(a, low), _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    return model_of_dpwssd(sum, _mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
}
#endif
