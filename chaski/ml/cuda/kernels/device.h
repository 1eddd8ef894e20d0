// The processor's own instructions that kernels use. Tests have another file of this name, which runs a
// thread block on the host (tests/cuda/emulated/device.h).
//
// Every rounding is explicit, because the compiler must not fuse a product and a sum.
#pragma once

#include <cstdint>

// A kernel has one argument, a plain struct: `CHASKI_KERNEL(name, Arguments) { ... a.x ... }`. If its launch
// lets it begin before the previous kernel has ended, it waits for that kernel. A CHASKI_KERNEL_AHEAD calls
// `device::begin` itself when it needs the results of earlier kernels, and may read weights before.
// CHASKI_BOUNDS: the most threads of a block, and the number of blocks that must fit a multiprocessor.
#if defined(CHASKI_BOUNDS)
#define CHASKI_BOUNDED __launch_bounds__(CHASKI_BOUNDS)
#else
#define CHASKI_BOUNDED
#endif
#define CHASKI_KERNEL_AHEAD(name, Arguments) \
    extern "C" __global__ void CHASKI_BOUNDED name(const __grid_constant__ Arguments a)
#define CHASKI_KERNEL(name, Arguments)                               \
    __device__ static inline void name##_behind(const Arguments& a); \
    CHASKI_KERNEL_AHEAD(name, Arguments) {                           \
        chaski::device::begin();                                     \
        name##_behind(a);                                            \
    }                                                                \
    __device__ static inline void name##_behind(const Arguments& a)

namespace chaski::device {

inline void begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}
inline float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
// The same, but subnormal operands and results count as zeros.
inline float fma_flushed(float a, float b, float c) {
    float y;
    asm("fma.rn.ftz.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
    return y;
}
inline float as_float(int32_t x) { return __int_as_float(x); }
inline int32_t as_int(float x) { return __float_as_int(x); }
inline int32_t round(float x) { return __float2int_rn(x); }
inline float square_root(float x) { return __fsqrt_rn(x); }
inline double square_root(double x) { return __dsqrt_rn(x); }
inline float widen_f16(uint16_t x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
inline uint16_t narrow_f16(float x) {
    uint16_t y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
// The same address or number, which the compiler does not compute again.
template <class T>
inline T* kept(T* p) {
    asm("" : "+l"(p));
    return p;
}
inline uint32_t kept(uint32_t x) {
    asm("" : "+r"(x));
    return x;
}
// acc + the sum over 4 bytes of w, unsigned, times those of x, signed.
inline int32_t dot4(int32_t acc, uint32_t w, int32_t x) {
    int32_t y;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(y) : "r"(w), "r"(x), "r"(acc));
    return y;
}
// Shifts by the five lowest bits of `bits`.
inline int32_t shift_left(int32_t x, int32_t bits) {
    return static_cast<int32_t>(__funnelshift_l(0u, static_cast<uint32_t>(x), static_cast<uint32_t>(bits)));
}
// Subtracts x from each byte, without borrowing from its neighbour.
inline uint32_t subtract_bytes(uint32_t a, uint32_t x) { return x == 0 ? a : __vsub4(a, x * 0x01010101u); }
// Tensor instructions of a warp: c (16, 8) += a (16, k) · b (k, 8), for k of 32 and 16, of bytes that are
// signed (s) or not (u). Thread 4 g + t passes elements 4 t to 4 t + 3 of each 16 of rows g and g + 8 of a,
// and the same elements of column g of b. Its results are rows g and g + 8 of columns 2 t and 2 t + 1.
// Turing's instruction has 8 rows and a k of 16.
#if __CUDA_ARCH__ >= 800
#define CHASKI_MULTIPLY(name, types)                                                                       \
    inline void multiply_32_##name(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t low, uint32_t high) { \
        asm("mma.sync.aligned.m16n8k32.row.col.s32." types                                                 \
            ".s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                   \
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                                               \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(low), "r"(high));                            \
    }                                                                                                      \
    inline void multiply_16_##name(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {                \
        asm("mma.sync.aligned.m16n8k16.row.col.s32." types                                                 \
            ".s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"                                            \
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                                               \
            : "r"(a0), "r"(a1), "r"(b));                                                                   \
    }
#else
#define CHASKI_MULTIPLY(name, types)                                                                       \
    inline void multiply_8_##name(int32_t& first, int32_t& second, uint32_t a, uint32_t b) {               \
        asm("mma.sync.aligned.m8n8k16.row.col.s32." types ".s32 {%0,%1}, {%2}, {%3}, {%0,%1};"             \
            : "+r"(first), "+r"(second)                                                                    \
            : "r"(a), "r"(b));                                                                             \
    }                                                                                                      \
    inline void multiply_16_##name(int32_t (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {                \
        multiply_8_##name(c[0], c[1], a0, b);                                                              \
        multiply_8_##name(c[2], c[3], a1, b);                                                              \
    }                                                                                                      \
    inline void multiply_32_##name(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t low, uint32_t high) { \
        multiply_16_##name(c, a[0], a[1], low);                                                            \
        multiply_16_##name(c, a[2], a[3], high);                                                           \
    }
#endif
CHASKI_MULTIPLY(ss, "s8.s8")
CHASKI_MULTIPLY(su, "s8.u8")
CHASKI_MULTIPLY(us, "u8.s8")
CHASKI_MULTIPLY(uu, "u8.u8")
#undef CHASKI_MULTIPLY
// Loads four matrices of 8 rows of 16 bytes from shared memory, whose addresses the threads of a warp pass in
// order. Thread 4 g + t gets word t of row g of each.
inline void load_matrices(uint32_t (&to)[4], const uint8_t* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row))));
}
// Byte i of the result is the byte of b:a with the number in nibble i of the selector, 0 to 7.
inline uint32_t select_bytes(uint32_t a, uint32_t b, uint32_t selector) {
    return __byte_perm(a, b, selector);
}
// Byte kByte, with its sign.
template <int kByte>
inline int32_t byte_of(uint32_t a) {
    return static_cast<int32_t>(__byte_perm(a, 0, kByte * 0x1111 | 0x8880));
}
// The value of the lane whose number differs in one bit: within 16 lanes, and within a warp.
template <class T>
inline T from_lane(T v, int apart) {
    return __shfl_xor_sync(0xffffu << (threadIdx.x & 16), v, apart);
}
template <class T>
inline T from_thread(T v, int apart) {
    return __shfl_xor_sync(0xffffffffu, v, apart);
}
// The value of thread `number` of the warp, and a bit for each of its threads.
template <class T>
inline T value_of(T v, int number) {
    return __shfl_sync(0xffffffffu, v, number);
}
inline int32_t largest_of_warp(int32_t v) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, v);
#else
    for (int apart = 16; apart > 0; apart /= 2) v = max(v, from_thread(v, apart));
    return v;
#endif
}
inline uint32_t votes(bool is_set) { return __ballot_sync(0xffffffffu, is_set); }
inline int32_t count_bits(uint32_t x) { return __popc(x); }
inline void barrier() { __syncthreads(); }
inline void barrier_of_warp() { __syncwarp(); }
// Starts copying 16 or 4 bytes to shared memory, `kAt` bytes after both addresses. Copies before an
// `end_copies` form a group, and `wait_copies` waits for all groups of this thread except the last `kLeft`.
// Turing copies at once.
#if __CUDA_ARCH__ >= 800
template <int kAt = 0>
inline void copy_16(uint8_t* to, const uint8_t* from) {
    asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %2], 16;"
                 :
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from), "n"(kAt)
                 : "memory");
}
inline void copy_4(int32_t* to, const int32_t* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                 :
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(from)
                 : "memory");
}
inline void end_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int kLeft>
inline void wait_copies() {
    asm volatile("cp.async.wait_group %0;" : : "n"(kLeft) : "memory");
}
#else
template <int kAt = 0>
inline void copy_16(uint8_t* to, const uint8_t* from) {
    *reinterpret_cast<int4*>(to + kAt) = *reinterpret_cast<const int4*>(from + kAt);
}
inline void copy_4(int32_t* to, const int32_t* from) { *to = *from; }
inline void end_copies() {}
template <int kLeft>
inline void wait_copies() {}
#endif
// The memory that a thread block shares; the launch sets its size.
inline uint8_t* shared() {
    extern __shared__ __align__(16) uint8_t memory[];
    return memory;
}
// Counts an arrival of `total` at a counter in device memory that was zero before the first of them. Returns
// whether it is the last; then the counter is zero again, and what other threads wrote before they arrived
// can be read. The thread speaks for those that it has met at a barrier before.
inline bool arrive(uint32_t* counter, uint32_t total) {
    __threadfence();
    const bool is_last = atomicInc(counter, total - 1) == total - 1;
    __threadfence();
    return is_last;
}
// In shared memory: to += x, and to = min(to, x). They return the previous value.
inline int32_t add_shared(int32_t* to, int32_t x) { return atomicAdd(to, x); }
inline int32_t lower_shared(int32_t* to, int32_t x) { return atomicMin(to, x); }

}  // namespace chaski::device
