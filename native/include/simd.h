// Vectors of 16 dword lanes for the instruction set that this file is compiled for.
//
//   F32x16  16 floats          I32x16  16 int32          U8x64  16 lanes of 4 unsigned bytes
//
// The kernel sources are compiled once per instruction set, with CHASKI_ISA naming the namespace; everything
// here lives in it, so that the linker never mixes code of two sets. All operations give the same bits on
// every set.
//
//   load_f32 store_f32 (optionally the first `count` lanes)  load_f16 load_bf16 (16 values, widened exactly)
//   load_i8 load_i16 (widened)  store_i8 store_i16 store_bytes  splat  splat_f16  fma  max_abs  to_f32
//   round_to_i32 truncate_to_i32 (toward zero)  bit_cast_f32  reduce_max reduce_add (of all lanes)
//   max_each add_each (lane r: that of vector r of 16)
//   field<From, Width, To>(v): in every byte, bits From..From+Width-1 moved to bit To, the rest zero
//   as_i32, as_bytes: the same bits      byte<B>, signed_byte<B>: byte B of each lane, widened
//   copy_byte<B>: byte B of each lane in all its bytes      lookup: 16-entry byte table
//   widen_f16: the half-precision number in the low half of each lane
//
//   gather: for each lane an entry of a table of dwords      gather_of_two<I>: dword I of an entry of two
//
//   mirror<From>(v, signs, top): byte j of each lane, or top - byte if bit From + j of the lane of `signs` is
//   set; From is a multiple of 4, and no byte is above top
//
//   times(v, n): both uint16 of each lane times n; the products must fit 16 bits
//
//   dot4<kMaxCode>(acc, w, x): acc + sum over the 4 bytes of (w - dot4_bias<kMaxCode>) * x, x int8 with |x|
//   <= 127
//
//   first_pairs<kMaxCode>(w, x), add_pairs<kMaxCode>(acc, w, x), add_sums(acc, pairs): the same in steps
//   if dot4_run is above 1: this many dot4s may be added to PairSums before those are added to acc
//
//   words<H>(v, offset), if kWordsAreFaster: bytes 2 H and 2 H + 1 of each lane, less the offset, as int16
//
//   pairs(a, b): the low halves of both as the 2 int16 of each lane      dot2(acc, w, x): acc + sum over the
//   2 int16 of w * x      shift_pairs(w, by): each int16 of w times 2^n, n one of the 2 int16 of `by`, 0 to 6
#pragma once

#include <cstdint>
#include <utility>

#ifndef CHASKI_ISA
#error "define CHASKI_ISA as the namespace of the instruction set"
#endif

#define CHASKI_INLINE inline __attribute__((always_inline))

namespace chaski::CHASKI_ISA {

// Reads without alignment or aliasing requirements.
template <class T>
CHASKI_INLINE T read(const void* p) {
    T value;
    __builtin_memcpy(&value, p, sizeof(T));
    return value;
}

template <class T>
CHASKI_INLINE void write(void* p, T value) {
    __builtin_memcpy(p, &value, sizeof(T));
}

// unroll<N>(f): f(Index<0>{}), ..., f(Index<N - 1>{}); an Index converts to a constant.
template <int I>
struct Index {
    static constexpr int value = I;
    CHASKI_INLINE constexpr operator int() const { return I; }
};

// Recursion would nest all later calls in each function, and compile time would grow with the square of N.
template <class F, int... I>
CHASKI_INLINE void unroll(const F& f, std::integer_sequence<int, I...>) {
    (f(Index<I>{}), ...);
}
template <int N, class F>
CHASKI_INLINE void unroll(const F& f) {
    unroll(f, std::make_integer_sequence<int, N>{});
}

}  // namespace chaski::CHASKI_ISA

namespace chaski::CHASKI_ISA {
#if defined(__AVX512VNNI__)
// Tile registers are detected at run time; their code is compiled with the instruction set that such
// processors also have.
inline constexpr bool kHasAmx = true;
#else
inline constexpr bool kHasAmx = false;
#endif
}  // namespace chaski::CHASKI_ISA

#if defined(CHASKI_CUDA)
#include "simd_cuda.h"
#elif defined(__AVX512VNNI__)
#include "simd_avx512.h"
#elif defined(__AVX2__)
#include "simd_avx2.h"
#elif defined(CHASKI_NEON)  // the compiler's own macro is also set for portable code on some systems
#include "simd_neon.h"
#else
#include "simd_portable.h"
#endif

namespace chaski::CHASKI_ISA {
#if !defined(__AVX2__) || defined(__AVX512VNNI__) || defined(__AVXVNNI__)
template <int kMaxCode>
inline constexpr int dot4_run = 1;
using PairSums = I32x16;
template <int kMaxCode>
PairSums first_pairs(U8x64 w, int32_t x);
template <int kMaxCode>
PairSums add_pairs(PairSums acc, U8x64 w, int32_t x);
I32x16 add_sums(I32x16 acc, PairSums sums);
inline constexpr bool kWordsAreFaster = false;
template <int H>
I32x16 words(U8x64 codes, int offset);
#endif

CHASKI_INLINE I32x16 dot2(I32x16 acc, I32x16 w, int32_t x) { return dot2(acc, w, splat(x)); }

#if !defined(__AVX2__)
template <int I>
CHASKI_INLINE U8x64 gather_of_two(const uint32_t* table, I32x16 index) {
    return gather(table + I, shift_left<1>(index));
}
#endif

#if !defined(__AVX2__) && !defined(CHASKI_CUDA)
CHASKI_INLINE I32x16 max_each(const I32x16 (&a)[16]) {
    int32_t each[16];
    for (int i = 0; i < 16; ++i) each[i] = reduce_max(a[i]);
    return load_i32(each);
}
CHASKI_INLINE I32x16 add_each(const I32x16 (&a)[16]) {
    int32_t each[16];
    for (int i = 0; i < 16; ++i) each[i] = reduce_add(a[i]);
    return load_i32(each);
}
#endif
}  // namespace chaski::CHASKI_ISA
