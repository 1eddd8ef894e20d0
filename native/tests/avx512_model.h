// A model of the AVX-512 and AMX instructions that kernels use, for tests on processors without them. It is
// included before every file of the set `avx512` (CHASKI_AVX512_MODEL, tools/test_avx512.sh), which is then
// compiled for AVX2. A register is a vector of 64 bytes of the compiler, which divides it into two.
#pragma once

#if defined(__AVX2__) && !defined(__AVX512F__)
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>

#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512VNNI__ 1
#if defined(CHASKI_MODEL_BF16)
#define __AVX512BF16__ 1
#endif
#if defined(CHASKI_MODEL_VBMI)
#define __AVX512VBMI__ 1
#endif

namespace chaski::model {

#define CHASKI_MODEL static inline __attribute__((noinline, unused))
#define CHASKI_MODEL_INLINE static inline __attribute__((always_inline))

typedef float F32 __attribute__((vector_size(64)));
typedef int8_t I8 __attribute__((vector_size(64)));
typedef uint8_t U8 __attribute__((vector_size(64)));
typedef int16_t I16 __attribute__((vector_size(64)));
typedef uint16_t U16 __attribute__((vector_size(64)));
typedef int32_t I32 __attribute__((vector_size(64)));
typedef uint32_t U32 __attribute__((vector_size(64)));
typedef uint64_t U64 __attribute__((vector_size(64)));

// The vector whose elements are f(0), f(1), ...
template <class V, class F>
CHASKI_MODEL_INLINE V each(const F& f) {
    V y;
    for (unsigned i = 0; i < sizeof(V) / sizeof(y[0]); ++i) y[i] = f(i);
    return y;
}
template <class V, class X>
CHASKI_MODEL_INLINE V as(const X& x) {
    static_assert(sizeof(V) == sizeof(X));
    V y;
    __builtin_memcpy(&y, &x, sizeof(V));
    return y;
}
CHASKI_MODEL_INLINE __m512i bits(I8 x) { return as<__m512i>(x); }
template <class V>
CHASKI_MODEL_INLINE __m512i bits(V x) {
    return as<__m512i>(x);
}
CHASKI_MODEL_INLINE __m512 join(__m256 low, __m256 high) {
    __m512 y;
    __builtin_memcpy(&y, &low, 32);
    __builtin_memcpy(reinterpret_cast<char*>(&y) + 32, &high, 32);
    return y;
}
template <int kHalf, class Half, class V>
CHASKI_MODEL_INLINE Half half(const V& x) {
    Half y;
    __builtin_memcpy(&y, reinterpret_cast<const char*>(&x) + 32 * kHalf, 32);
    return y;
}
// Without a comma, which would end an argument of clang's macros.
template <int kHalf>
CHASKI_MODEL_INLINE __m256 half_ps(const __m512& x) {
    return half<kHalf, __m256>(x);
}

// Loads, stores and constants
CHASKI_MODEL_INLINE __m512 loadu_ps(const void* p) {
    __m512 y;
    std::memcpy(&y, p, 64);
    return y;
}
CHASKI_MODEL_INLINE __m512i loadu_si512(const void* p) {
    __m512i y;
    std::memcpy(&y, p, 64);
    return y;
}
CHASKI_MODEL __m512 maskz_loadu_ps(uint16_t mask, const float* p) {
    return each<F32>([&](unsigned i) { return mask >> i & 1 ? p[i] : 0.0f; });
}
CHASKI_MODEL_INLINE void storeu_ps(void* p, __m512 a) { std::memcpy(p, &a, 64); }
CHASKI_MODEL_INLINE void storeu_si512(void* p, __m512i a) { std::memcpy(p, &a, 64); }
CHASKI_MODEL void mask_storeu_ps(float* p, uint16_t mask, __m512 a) {
    for (int i = 0; i < 16; ++i) {
        if (mask >> i & 1) p[i] = as<F32>(a)[i];
    }
}
CHASKI_MODEL_INLINE __m512 set1_ps(float x) { return x - F32{}; }  // keeps -0
CHASKI_MODEL_INLINE __m512 setzero_ps() { return F32{}; }
CHASKI_MODEL __m512i set1_epi8(char x) { return bits(I8{} + static_cast<int8_t>(x)); }
CHASKI_MODEL __m512i set1_epi16(short x) { return bits(I16{} + x); }
CHASKI_MODEL __m512i set1_epi32(int x) { return bits(I32{} + x); }
CHASKI_MODEL __m512i set1_epi64(long long x) { return bits(U64{} + static_cast<uint64_t>(x)); }
template <class... T>
CHASKI_MODEL __m512i setr_epi32(T... x) {
    return bits(I32{x...});
}
CHASKI_MODEL __m512i broadcast_i32x4(__m128i x) {
    return bits(each<I32>([&](unsigned i) { return reinterpret_cast<const int32_t*>(&x)[i % 4]; }));
}

// Floats
CHASKI_MODEL_INLINE __m512 add_ps(__m512 a, __m512 b) { return as<F32>(a) + as<F32>(b); }
CHASKI_MODEL_INLINE __m512 mul_ps(__m512 a, __m512 b) { return as<F32>(a) * as<F32>(b); }
CHASKI_MODEL __m512 div_ps(__m512 a, __m512 b) { return as<F32>(a) / as<F32>(b); }
CHASKI_MODEL __m512 xor_ps(__m512 a, __m512 b) { return as<__m512>(as<U32>(a) ^ as<U32>(b)); }
CHASKI_MODEL __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
    return join(_mm256_fmadd_ps(half_ps<0>(a), half_ps<0>(b), half_ps<0>(c)),
                _mm256_fmadd_ps(half_ps<1>(a), half_ps<1>(b), half_ps<1>(c)));
}
// The second operand where neither is larger, as zeros of two signs, or one is NaN.
CHASKI_MODEL __m512 max_ps(__m512 a, __m512 b) { return as<F32>(a) > as<F32>(b) ? as<F32>(a) : as<F32>(b); }
CHASKI_MODEL __m512 min_ps(__m512 a, __m512 b) { return as<F32>(a) < as<F32>(b) ? as<F32>(a) : as<F32>(b); }
template <int kCompared>
CHASKI_MODEL uint16_t cmp_ps_mask(__m512 a, __m512 b) {
    const auto mask = [](__m256 x, __m256 y) { return _mm256_movemask_ps(_mm256_cmp_ps(x, y, kCompared)); };
    return static_cast<uint16_t>(mask(half_ps<0>(a), half_ps<0>(b)) | mask(half_ps<1>(a), half_ps<1>(b))
                                                                          << 8);
}
CHASKI_MODEL __m512 mask_blend_ps(uint16_t mask, __m512 a, __m512 b) {
    return each<F32>([&](unsigned i) { return mask >> i & 1 ? as<F32>(b)[i] : as<F32>(a)[i]; });
}
template <int kMode>
CHASKI_MODEL __m512 roundscale_ps(__m512 a) {
    return join(_mm256_round_ps(half_ps<0>(a), kMode), _mm256_round_ps(half_ps<1>(a), kMode));
}
// p · 2^floor(n), for n that are whole and leave p normal.
CHASKI_MODEL __m512 maskz_scalef_ps(uint16_t mask, __m512 p, __m512 n) {
    return each<F32>([&](unsigned i) {
        return mask >> i & 1 ? __builtin_scalbnf(as<F32>(p)[i], static_cast<int>(as<F32>(n)[i])) : 0.0f;
    });
}
template <int kChosen>
CHASKI_MODEL __m512 shuffle_ps(__m512 a, __m512 b) {
    return join(_mm256_shuffle_ps(half_ps<0>(a), half_ps<0>(b), kChosen),
                _mm256_shuffle_ps(half_ps<1>(a), half_ps<1>(b), kChosen));
}

// Conversions
CHASKI_MODEL_INLINE __m512 castsi512_ps(__m512i a) { return as<__m512>(a); }
CHASKI_MODEL_INLINE __m512i castps_si512(__m512 a) { return as<__m512i>(a); }
CHASKI_MODEL_INLINE __m256i castsi512_si256(__m512i a) { return half<0, __m256i>(a); }
CHASKI_MODEL_INLINE __m256 castps512_ps256(__m512 a) { return half_ps<0>(a); }
CHASKI_MODEL __m512i castsi256_si512(__m256i a) {
    __m512i y = {};
    __builtin_memcpy(&y, &a, 32);
    return y;
}
template <int kHalf>
CHASKI_MODEL __m256i extracti64x4_epi64(__m512i a) {
    return half<kHalf, __m256i>(a);
}
template <int kHalf>
CHASKI_MODEL __m256 extractf32x8_ps(__m512 a) {
    return half<kHalf, __m256>(a);
}
template <int kHalf>
CHASKI_MODEL __m512i inserti64x4(__m512i a, __m256i b) {
    __builtin_memcpy(reinterpret_cast<char*>(&a) + 32 * kHalf, &b, 32);
    return a;
}
CHASKI_MODEL __m512 cvtph_ps(__m256i a) {
    return join(_mm256_cvtph_ps(_mm256_castsi256_si128(a)), _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)));
}
template <int kMode>
CHASKI_MODEL __m256i cvtps_ph(__m512 a) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm256_cvtps_ph(half_ps<0>(a), kMode)),
                                   _mm256_cvtps_ph(half_ps<1>(a), kMode), 1);
}
CHASKI_MODEL __m512 cvtepi32_ps(__m512i a) { return __builtin_convertvector(as<I32>(a), F32); }
CHASKI_MODEL __m512i cvtps_epi32(__m512 a) {
    return as<__m512i>(join(_mm256_castsi256_ps(_mm256_cvtps_epi32(half_ps<0>(a))),
                            _mm256_castsi256_ps(_mm256_cvtps_epi32(half_ps<1>(a)))));
}
CHASKI_MODEL __m512i cvttps_epi32(__m512 a) {
    return as<__m512i>(join(_mm256_castsi256_ps(_mm256_cvttps_epi32(half_ps<0>(a))),
                            _mm256_castsi256_ps(_mm256_cvttps_epi32(half_ps<1>(a)))));
}
template <class From, class X>
CHASKI_MODEL __m512i widened(const X& a) {
    return bits(each<I32>([&](unsigned i) { return int32_t{reinterpret_cast<const From*>(&a)[i]}; }));
}
CHASKI_MODEL __m512i cvtepu8_epi32(__m128i a) { return widened<uint8_t>(a); }
CHASKI_MODEL __m512i cvtepi8_epi32(__m128i a) { return widened<int8_t>(a); }
CHASKI_MODEL __m512i cvtepu16_epi32(__m256i a) { return widened<uint16_t>(a); }
CHASKI_MODEL __m512i cvtepi16_epi32(__m256i a) { return widened<int16_t>(a); }
CHASKI_MODEL __m128i cvtepi32_epi8(__m512i a) {
    typedef uint8_t Part __attribute__((vector_size(16)));
    return as<__m128i>(each<Part>([&](unsigned i) { return static_cast<uint8_t>(as<I32>(a)[i]); }));
}
CHASKI_MODEL __m256i cvtepi32_epi16(__m512i a) {
    typedef uint16_t Part __attribute__((vector_size(32)));
    return as<__m256i>(each<Part>([&](unsigned i) { return static_cast<uint16_t>(as<I32>(a)[i]); }));
}

// Integers
CHASKI_MODEL_INLINE __m512i and_si512(__m512i a, __m512i b) { return a & b; }
CHASKI_MODEL_INLINE __m512i or_si512(__m512i a, __m512i b) { return a | b; }
CHASKI_MODEL_INLINE __m512i add_epi32(__m512i a, __m512i b) { return bits(as<U32>(a) + as<U32>(b)); }
CHASKI_MODEL __m512i sub_epi8(__m512i a, __m512i b) { return bits(as<U8>(a) - as<U8>(b)); }
CHASKI_MODEL __m512i add_epi8(__m512i a, __m512i b) { return bits(as<U8>(a) + as<U8>(b)); }
CHASKI_MODEL __m512i sub_epi32(__m512i a, __m512i b) { return bits(as<U32>(a) - as<U32>(b)); }
CHASKI_MODEL __m512i sub_epi16(__m512i a, __m512i b) { return bits(as<U16>(a) - as<U16>(b)); }
CHASKI_MODEL __m512i mullo_epi16(__m512i a, __m512i b) { return bits(as<U16>(a) * as<U16>(b)); }
CHASKI_MODEL __m512i min_epi32(__m512i a, __m512i b) {
    return bits(as<I32>(a) < as<I32>(b) ? as<I32>(a) : as<I32>(b));
}
CHASKI_MODEL __m512i max_epi32(__m512i a, __m512i b) {
    return bits(as<I32>(a) > as<I32>(b) ? as<I32>(a) : as<I32>(b));
}
CHASKI_MODEL __m512i slli_epi32(__m512i a, unsigned by) { return bits(as<U32>(a) << by); }
CHASKI_MODEL __m512i srli_epi32(__m512i a, unsigned by) { return bits(as<U32>(a) >> by); }
CHASKI_MODEL __m512i srai_epi32(__m512i a, unsigned by) { return bits(as<I32>(a) >> static_cast<int>(by)); }
CHASKI_MODEL __m512i slli_epi16(__m512i a, unsigned by) {
    return bits(each<U16>([&](unsigned i) { return static_cast<uint16_t>(as<U16>(a)[i] << by); }));
}
CHASKI_MODEL __m512i srli_epi16(__m512i a, unsigned by) {
    return bits(each<U16>([&](unsigned i) { return static_cast<uint16_t>(as<U16>(a)[i] >> by); }));
}
CHASKI_MODEL __m512i sllv_epi16(__m512i a, __m512i by) {
    return bits(each<U16>([&](unsigned i) {
        return static_cast<uint16_t>(as<U16>(by)[i] < 16 ? as<U16>(a)[i] << as<U16>(by)[i] : 0);
    }));
}
CHASKI_MODEL int32_t reduce_max_epi32(__m512i a) {
    int32_t y = as<I32>(a)[0];
    for (int i = 1; i < 16; ++i) y = as<I32>(a)[i] > y ? as<I32>(a)[i] : y;
    return y;
}
CHASKI_MODEL int32_t reduce_add_epi32(__m512i a) {
    uint32_t y = 0;
    for (int i = 0; i < 16; ++i) y += as<U32>(a)[i];
    return static_cast<int32_t>(y);
}
template <int kChosen>
CHASKI_MODEL __m512i shuffle_i32x4(__m512i a, __m512i b) {
    return bits(each<I32>([&](unsigned i) {
        const unsigned part = kChosen >> (i / 4 * 2) & 3;
        return as<I32>(i < 8 ? a : b)[4 * part + i % 4];
    }));
}
CHASKI_MODEL __m512i unpacklo_epi64(__m512i a, __m512i b) {
    return bits(each<U64>([&](unsigned i) { return as<U64>(i % 2 == 0 ? a : b)[i / 2 * 2]; }));
}
CHASKI_MODEL __m512i unpackhi_epi64(__m512i a, __m512i b) {
    return bits(each<U64>([&](unsigned i) { return as<U64>(i % 2 == 0 ? a : b)[i / 2 * 2 + 1]; }));
}
CHASKI_MODEL __m512i shuffle_epi8(__m512i a, __m512i places) {
    return bits(each<U8>([&](unsigned i) {
        const uint8_t place = as<U8>(places)[i];
        return static_cast<uint8_t>(place & 0x80 ? 0 : as<U8>(a)[i / 16 * 16 + place % 16]);
    }));
}
CHASKI_MODEL __m512i permutexvar_epi32(__m512i places, __m512i a) {
    return bits(each<U32>([&](unsigned i) { return as<U32>(a)[as<U32>(places)[i] % 16]; }));
}
CHASKI_MODEL __m512i permutexvar_epi8(__m512i places, __m512i a) {
    return bits(each<U8>([&](unsigned i) { return as<U8>(a)[as<U8>(places)[i] % 64]; }));
}
CHASKI_MODEL __m512i permutex2var_epi8(__m512i a, __m512i places, __m512i b) {
    return bits(each<U8>([&](unsigned i) {
        const uint8_t place = as<U8>(places)[i];
        return as<U8>(place & 64 ? b : a)[place % 64];
    }));
}
CHASKI_MODEL __m512i multishift_epi64_epi8(__m512i places, __m512i a) {
    return bits(each<U8>([&](unsigned i) {
        const uint64_t from = as<U64>(a)[i / 8];
        const unsigned by = as<U8>(places)[i] % 64;
        return static_cast<uint8_t>(by == 0 ? from : from >> by | from << (64 - by));
    }));
}
template <int kTable>
CHASKI_MODEL __m512i ternarylogic_epi32(__m512i a, __m512i b, __m512i c) {
    __m512i y = {};
    for (int i = 0; i < 8; ++i) {
        if (kTable >> i & 1) y |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    }
    return y;
}
CHASKI_MODEL uint64_t test_epi8_mask(__m512i a, __m512i b) {
    uint64_t y = 0;
    for (int i = 0; i < 64; ++i) y |= uint64_t{(as<U8>(a)[i] & as<U8>(b)[i]) != 0} << i;
    return y;
}
CHASKI_MODEL uint64_t movepi8_mask(__m512i a) {
    return test_epi8_mask(a, set1_epi8(static_cast<char>(0x80)));
}
CHASKI_MODEL __m512i mask_blend_epi8(uint64_t mask, __m512i a, __m512i b) {
    return bits(each<U8>([&](unsigned i) { return as<U8>(mask >> i & 1 ? b : a)[i]; }));
}
CHASKI_MODEL __m512i mask_blend_epi16(uint32_t mask, __m512i a, __m512i b) {
    return bits(each<U16>([&](unsigned i) { return as<U16>(mask >> i & 1 ? b : a)[i]; }));
}
CHASKI_MODEL __m512i mask_sub_epi8(__m512i from, uint64_t mask, __m512i a, __m512i b) {
    return mask_blend_epi8(mask, from, sub_epi8(a, b));
}
template <int kScale>
CHASKI_MODEL __m512i i32gather_epi32(__m512i index, const void* table) {
    return bits(each<I32>([&](unsigned i) {
        int32_t y;
        std::memcpy(&y, static_cast<const char*>(table) + int64_t{kScale} * as<I32>(index)[i], 4);
        return y;
    }));
}
template <int kScale>
CHASKI_MODEL __m512i i32gather_epi64(__m256i index, const void* table) {
    return bits(each<U64>([&](unsigned i) {
        uint64_t y;
        const int32_t place = reinterpret_cast<const int32_t*>(&index)[i];
        std::memcpy(&y, static_cast<const char*>(table) + int64_t{kScale} * place, 8);
        return y;
    }));
}

// Products of integers
CHASKI_MODEL __m512i dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
    return bits(each<U32>([&](unsigned i) {
        int32_t products = 0;
        for (unsigned j = 4 * i; j < 4 * i + 4; ++j) products += as<U8>(a)[j] * as<I8>(b)[j];
        return as<U32>(sum)[i] + static_cast<uint32_t>(products);
    }));
}
CHASKI_MODEL __m512i dpwssd_epi32(__m512i sum, __m512i a, __m512i b) {
    return bits(each<U32>([&](unsigned i) {
        const int64_t products = int64_t{as<I16>(a)[2 * i]} * as<I16>(b)[2 * i] +
                                 int64_t{as<I16>(a)[2 * i + 1]} * as<I16>(b)[2 * i + 1];
        return as<U32>(sum)[i] + static_cast<uint32_t>(products);
    }));
}
CHASKI_MODEL __m512i gf2p8affine_epi64_epi8(__m512i x, __m512i matrices) {
    return bits(each<U8>([&](unsigned i) {
        uint8_t y = 0;
        for (int bit = 0; bit < 8; ++bit) {
            const uint8_t row = as<U8>(matrices)[i / 8 * 8 + 7 - bit];
            y |= static_cast<uint8_t>((__builtin_popcount(row & as<U8>(x)[i]) & 1) << bit);
        }
        return y;
    }));
}

// Products of bf16: subnormal numbers count as zeros, also in sums, which round after each product. The odd
// elements come first.
CHASKI_MODEL_INLINE float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126f ? x * 0.0f : x; }
CHASKI_MODEL_INLINE float widened_bf16(uint16_t x) {
    return flushed(__builtin_bit_cast(float, static_cast<uint32_t>(x) << 16));
}
template <class Pair>
CHASKI_MODEL __m512 dpbf16_ps(__m512 sum, Pair a, Pair b) {
    return each<F32>([&](unsigned i) {
        float y = flushed(as<F32>(sum)[i]);
        for (unsigned j : {2 * i + 1, 2 * i}) {
            y = flushed(__builtin_fmaf(widened_bf16(as<U16>(a)[j]), widened_bf16(as<U16>(b)[j]), y));
        }
        return y;
    });
}
CHASKI_MODEL uint16_t rounded_bf16(float x) {
    const auto bits = __builtin_bit_cast(uint32_t, x);
    if (x != x) return static_cast<uint16_t>(bits >> 16 | 0x40);
    if ((bits & 0x7f800000) == 0) return static_cast<uint16_t>(bits >> 16 & 0x8000);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
CHASKI_MODEL __m512bh cvtne2ps_pbh(__m512 high, __m512 low) {
    return as<__m512bh>(
        each<U16>([&](unsigned i) { return rounded_bf16(as<F32>(i < 16 ? low : high)[i % 16]); }));
}

// Tile registers
struct Tile {
    int rows, bytes;
    uint8_t data[16][64];
};
inline thread_local Tile tiles[8];

CHASKI_MODEL void configure_tiles(const void* shapes) {
    const auto* bytes = static_cast<const uint8_t*>(shapes);
    for (int tile = 0; tile < 8; ++tile) {
        uint16_t width;
        std::memcpy(&width, bytes + 16 + 2 * tile, 2);
        tiles[tile] = {bytes[48 + tile], width, {}};
    }
}
CHASKI_MODEL void release_tiles() { std::memset(tiles, 0, sizeof(tiles)); }
CHASKI_MODEL void clear_tile(int tile) { std::memset(tiles[tile].data, 0, sizeof(tiles[tile].data)); }
CHASKI_MODEL void load_tile(int tile, const void* p, int64_t stride) {
    clear_tile(tile);
    for (int row = 0; row < tiles[tile].rows; ++row) {
        std::memcpy(tiles[tile].data[row], static_cast<const char*>(p) + row * stride, tiles[tile].bytes);
    }
}
CHASKI_MODEL void store_tile(int tile, void* p, int64_t stride) {
    for (int row = 0; row < tiles[tile].rows; ++row) {
        std::memcpy(static_cast<char*>(p) + row * stride, tiles[tile].data[row], tiles[tile].bytes);
    }
}
CHASKI_MODEL void multiply_tiles(int c, int a, int b) {
    Tile &sums = tiles[c], &left = tiles[a], &right = tiles[b];
    for (int m = 0; m < left.rows; ++m) {
        for (int n = 0; n < right.bytes / 4; ++n) {
            uint32_t sum;
            std::memcpy(&sum, sums.data[m] + 4 * n, 4);
            for (int k = 0; k < left.bytes; ++k) {
                sum += static_cast<uint32_t>(static_cast<int8_t>(left.data[m][k]) *
                                             static_cast<int8_t>(right.data[k / 4][4 * n + k % 4]));
            }
            std::memcpy(sums.data[m] + 4 * n, &sum, 4);
        }
    }
}

#undef CHASKI_MODEL
#undef CHASKI_MODEL_INLINE

}  // namespace chaski::model

#define _mm512_add_epi8 chaski::model::add_epi8
#define _mm512_sub_epi32 chaski::model::sub_epi32
#define _mm512_add_epi32 chaski::model::add_epi32
#define _mm512_add_ps chaski::model::add_ps
#define _mm512_and_si512 chaski::model::and_si512
#define _mm512_broadcast_i32x4 chaski::model::broadcast_i32x4
#define _mm512_castps512_ps256 chaski::model::castps512_ps256
#define _mm512_castps_si512 chaski::model::castps_si512
#define _mm512_castsi256_si512 chaski::model::castsi256_si512
#define _mm512_castsi512_ps chaski::model::castsi512_ps
#define _mm512_castsi512_si256 chaski::model::castsi512_si256
#define _mm512_cmp_ps_mask(a, b, chosen) chaski::model::cmp_ps_mask<chosen>(a, b)
#define _mm512_cvtepi16_epi32 chaski::model::cvtepi16_epi32
#define _mm512_cvtepi32_epi16 chaski::model::cvtepi32_epi16
#define _mm512_cvtepi32_epi8 chaski::model::cvtepi32_epi8
#define _mm512_cvtepi32_ps chaski::model::cvtepi32_ps
#define _mm512_cvtepi8_epi32 chaski::model::cvtepi8_epi32
#define _mm512_cvtepu16_epi32 chaski::model::cvtepu16_epi32
#define _mm512_cvtepu8_epi32 chaski::model::cvtepu8_epi32
#define _mm512_cvtne2ps_pbh chaski::model::cvtne2ps_pbh
#define _mm512_cvtph_ps chaski::model::cvtph_ps
#define _mm512_cvtps_epi32 chaski::model::cvtps_epi32
#define _mm512_cvtps_ph(a, chosen) chaski::model::cvtps_ph<chosen>(a)
#define _mm512_cvttps_epi32 chaski::model::cvttps_epi32
#define _mm512_div_ps chaski::model::div_ps
#define _mm512_dpbf16_ps chaski::model::dpbf16_ps
#define _mm512_dpbusd_epi32 chaski::model::dpbusd_epi32
#define _mm512_extractf32x8_ps(a, chosen) chaski::model::extractf32x8_ps<chosen>(a)
#define _mm512_extracti64x4_epi64(a, chosen) chaski::model::extracti64x4_epi64<chosen>(a)
#define _mm512_fmadd_ps chaski::model::fmadd_ps
#define _mm512_i32gather_epi32(a, b, chosen) chaski::model::i32gather_epi32<chosen>(a, b)
#define _mm512_i32gather_epi64(a, b, chosen) chaski::model::i32gather_epi64<chosen>(a, b)
#define _mm512_inserti64x4(a, b, chosen) chaski::model::inserti64x4<chosen>(a, b)
#define _mm512_load_si512 chaski::model::loadu_si512
#define _mm512_loadu_ps chaski::model::loadu_ps
#define _mm512_loadu_si512 chaski::model::loadu_si512
#define _mm512_mask_blend_epi16 chaski::model::mask_blend_epi16
#define _mm512_mask_blend_epi8 chaski::model::mask_blend_epi8
#define _mm512_mask_blend_ps chaski::model::mask_blend_ps
#define _mm512_mask_storeu_ps chaski::model::mask_storeu_ps
#define _mm512_mask_sub_epi8 chaski::model::mask_sub_epi8
#define _mm512_maskz_loadu_ps chaski::model::maskz_loadu_ps
#define _mm512_maskz_scalef_ps chaski::model::maskz_scalef_ps
#define _mm512_max_epi32 chaski::model::max_epi32
#define _mm512_max_ps chaski::model::max_ps
#define _mm512_min_epi32 chaski::model::min_epi32
#define _mm512_min_ps chaski::model::min_ps
#define _mm512_movepi8_mask chaski::model::movepi8_mask
#define _mm512_mul_ps chaski::model::mul_ps
#define _mm512_mullo_epi16 chaski::model::mullo_epi16
#define _mm512_multishift_epi64_epi8 chaski::model::multishift_epi64_epi8
#define _mm512_or_si512 chaski::model::or_si512
#define _mm512_permutex2var_epi8 chaski::model::permutex2var_epi8
#define _mm512_permutexvar_epi32 chaski::model::permutexvar_epi32
#define _mm512_permutexvar_epi8 chaski::model::permutexvar_epi8
#define _mm512_reduce_add_epi32 chaski::model::reduce_add_epi32
#define _mm512_reduce_max_epi32 chaski::model::reduce_max_epi32
#define _mm512_roundscale_ps(a, chosen) chaski::model::roundscale_ps<chosen>(a)
#define _mm512_set1_epi16 chaski::model::set1_epi16
#define _mm512_set1_epi32 chaski::model::set1_epi32
#define _mm512_set1_epi64 chaski::model::set1_epi64
#define _mm512_set1_epi8 chaski::model::set1_epi8
#define _mm512_set1_ps chaski::model::set1_ps
#define _mm512_setr_epi32 chaski::model::setr_epi32
#define _mm512_setzero_ps chaski::model::setzero_ps
#define _mm512_shuffle_epi8 chaski::model::shuffle_epi8
#define _mm512_shuffle_i32x4(a, b, chosen) chaski::model::shuffle_i32x4<chosen>(a, b)
#define _mm512_shuffle_ps(a, b, chosen) chaski::model::shuffle_ps<chosen>(a, b)
#define _mm512_slli_epi16 chaski::model::slli_epi16
#define _mm512_slli_epi32 chaski::model::slli_epi32
#define _mm512_sllv_epi16 chaski::model::sllv_epi16
#define _mm512_srai_epi32 chaski::model::srai_epi32
#define _mm512_srli_epi16 chaski::model::srli_epi16
#define _mm512_srli_epi32 chaski::model::srli_epi32
#define _mm512_storeu_ps chaski::model::storeu_ps
#define _mm512_storeu_si512 chaski::model::storeu_si512
#define _mm512_sub_epi16 chaski::model::sub_epi16
#define _mm512_sub_epi8 chaski::model::sub_epi8
#define _mm512_ternarylogic_epi32(a, b, c, chosen) chaski::model::ternarylogic_epi32<chosen>(a, b, c)
#define _mm512_test_epi8_mask chaski::model::test_epi8_mask
#define _mm512_unpackhi_epi64 chaski::model::unpackhi_epi64
#define _mm512_unpacklo_epi64 chaski::model::unpacklo_epi64
#define _mm512_xor_ps chaski::model::xor_ps
#endif
