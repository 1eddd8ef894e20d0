// Instructions of AVX-512 and AMX that are written as assembly: the kernels are not compiled for all of their
// sets, and the compiler keeps vectors in registers. Tests replace them by a model
// (native/tests/avx512_model.h).
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace chaski::CHASKI_ISA {

#if defined(CHASKI_AVX512_MODEL)
#define CHASKI_FOR_BF16
CHASKI_INLINE __m512i add_dots(__m512i acc, __m512i w, __m512i x) { return model::dpwssd_epi32(acc, w, x); }
CHASKI_INLINE __m512i transform_bytes(__m512i x, __m512i matrices) {
    return model::gf2p8affine_epi64_epi8(x, matrices);
}
template <class Shapes>
CHASKI_INLINE void configure_tiles(const Shapes& shapes) {
    model::configure_tiles(&shapes);
}
CHASKI_INLINE void release_tiles() { model::release_tiles(); }
template <int kTile, int kBytes>
CHASKI_INLINE void load_tile(const void* p, int64_t stride) {
    model::load_tile(kTile, p, stride);
}
template <int kTile>
CHASKI_INLINE void store_tile(int32_t (&sums)[16][16]) {
    model::store_tile(kTile, sums, 64);
}
template <int kTile>
CHASKI_INLINE void clear_tile() {
    model::clear_tile(kTile);
}
template <int C, int A, int B>
CHASKI_INLINE void multiply_tiles() {
    model::multiply_tiles(C, A, B);
}
#else
#define CHASKI_FOR_BF16 __attribute__((target("avx512bf16")))  // compiles a function for these instructions
// acc + the products of two int16. With the intrinsic, GCC 12 keeps the sums of a loop twice, as vectors of
// two element types.
CHASKI_INLINE __m512i add_dots(__m512i acc, __m512i w, __m512i x) {
    asm("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x));
    return acc;
}
// Multiplies bytes by bit matrices, one for eight of them. Byte 7 - i of a matrix selects the bits whose sum
// is bit i of a result.
CHASKI_INLINE __m512i transform_bytes(__m512i x, __m512i matrices) {
    __m512i y;
    asm("vgf2p8affineqb $0, %2, %1, %0" : "=v"(y) : "v"(x), "v"(matrices));
    return y;
}

template <class Shapes>
CHASKI_INLINE void configure_tiles(const Shapes& shapes) {
    asm volatile("ldtilecfg %0" ::"m"(shapes));
}
CHASKI_INLINE void release_tiles() { asm volatile("tilerelease"); }
// Loads a tile register from `kBytes` at p, with rows `stride` apart. Memory is an operand, not a clobber, so
// that the compiler keeps its own vectors in registers.
template <int kTile, int kBytes>
CHASKI_INLINE void load_tile(const void* p, int64_t stride) {
    using Bytes = const char[kBytes];
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(kTile),
                 "m"(*static_cast<Bytes*>(p)));
}
template <int kTile>
CHASKI_INLINE void store_tile(int32_t (&sums)[16][16]) {
    asm volatile("tilestored %%tmm%c3, (%1,%2,1)" : "=m"(sums) : "r"(&sums), "r"(int64_t{64}), "i"(kTile));
}
template <int kTile>
CHASKI_INLINE void clear_tile() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
// C += A times B.
template <int C, int A, int B>
CHASKI_INLINE void multiply_tiles() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
#endif

}  // namespace chaski::CHASKI_ISA
