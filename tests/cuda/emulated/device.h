// Blocks of threads on the host instead of a GPU: kernels are compiled unchanged with this file instead of
// chaski/ml/cuda/kernels/device.h.
//
// A thread of a block is a fiber. It runs until it has to wait for others, and then the next one runs. When
// no fiber can continue, the kernel lets threads wait for others that never arrive, which a GPU may hide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "fibers.h"

struct alignas(16) int4 {
    std::int32_t x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    std::int32_t x, y;
};
struct alignas(8) uint2 {
    std::uint32_t x, y;
};
struct alignas(8) float2 {
    float x, y;
};

using chaski::emulated::blockDim;
using chaski::emulated::blockIdx;
using chaski::emulated::gridDim;
using chaski::emulated::threadIdx;

#define CHASKI_KERNEL(name, Arguments)             \
    static void name##_behind(const Arguments& a); \
    CHASKI_KERNEL_AHEAD(name, Arguments) {         \
        chaski::device::begin();                   \
        name##_behind(a);                          \
    }                                              \
    static void name##_behind(const Arguments& a)
#define CHASKI_KERNEL_AHEAD(name, Arguments)                                                                \
    static void name##_of_thread(const Arguments& a);                                                       \
    extern "C" int name(const void* arguments, const unsigned* grid, unsigned threads, std::size_t shared,  \
                        const std::size_t* memory) {                                                        \
        return emulated::run(grid, threads, shared, memory,                                                 \
                             [arguments] { name##_of_thread(*static_cast<const Arguments*>(arguments)); }); \
    }                                                                                                       \
    static void name##_of_thread(const Arguments& a)

namespace chaski::device {

inline void begin() { emulated::begin(); }

inline float as_float(std::int32_t x) { return __builtin_bit_cast(float, x); }
inline std::int32_t as_int(float x) { return __builtin_bit_cast(std::int32_t, x); }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x; }
inline float fma_flushed(float a, float b, float c) {
    return flushed(__builtin_fmaf(flushed(a), flushed(b), flushed(c)));
}
inline std::int32_t round(float x) {
    if (!(__builtin_fabsf(x) < 0x1p31f)) return x > 0 ? INT32_MAX : x < 0 ? INT32_MIN : 0;  // as on a GPU
    return static_cast<std::int32_t>(__builtin_rintf(x));
}
inline float square_root(float x) { return __builtin_sqrtf(x); }
inline double square_root(double x) { return __builtin_sqrt(x); }
inline float widen_f16(std::uint16_t h) {
    const std::int32_t magnitude = (h & 0x7fff) << 13, sign = (h & 0x8000) << 16;
    if (magnitude >= 0x0f800000) return as_float(sign | magnitude | 0x7f800000);
    return as_float(sign | as_int(as_float(magnitude) * 0x1p112f));
}
inline std::uint16_t narrow_f16(float x) {
    const auto bits = static_cast<std::uint32_t>(as_int(x));
    const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
    const std::uint32_t rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7fff);
    if (rest >= 0x47800000) return static_cast<std::uint16_t>(sign | 0x7c00);
    if (rest < 0x38800000) {
        const float shifted = as_float(static_cast<std::int32_t>(rest)) + 0.5f;
        return static_cast<std::uint16_t>(sign | (as_int(shifted) - 0x3f000000));
    }
    return static_cast<std::uint16_t>(sign | (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13);
}
template <class T>
T* kept(T* p) {
    return p;
}
inline std::uint32_t kept(std::uint32_t x) { return x; }
template <int kByte>
std::int32_t byte_of(std::uint32_t a) {
    return static_cast<std::int8_t>(a >> 8 * kByte);
}
inline std::int32_t dot4(std::int32_t acc, std::uint32_t w, std::int32_t x) {
    for (int i = 0; i < 4; ++i) {
        acc += static_cast<std::int32_t>(w >> 8 * i & 255) * static_cast<std::int8_t>(x >> 8 * i);
    }
    return acc;
}
inline std::uint32_t select_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
    const std::uint64_t both = static_cast<std::uint64_t>(b) << 32 | a;
    std::uint32_t y = 0;
    for (int i = 0; i < 4; ++i)
        y |= static_cast<std::uint32_t>(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return y;
}
inline std::int32_t shift_left(std::int32_t x, std::int32_t bits) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(x) << (bits & 31));
}
inline std::uint32_t subtract_bytes(std::uint32_t a, std::uint32_t x) {
    std::uint32_t y = 0;
    for (int i = 0; i < 32; i += 8) y |= (((a >> i & 255) - x) & 255) << i;
    return y;
}
template <class T>
T from_lane(T v, int apart) {
    return emulated::exchange(v, 16, [apart](int own) { return own ^ apart; });
}
template <class T>
T from_thread(T v, int apart) {
    return emulated::exchange(v, 32, [apart](int own) { return own ^ apart; });
}
template <class T>
T value_of(T v, int number) {
    return emulated::exchange(v, 32, [number](int) { return number; });
}
inline std::int32_t largest_of_warp(std::int32_t v) {
    for (int apart = 16; apart > 0; apart /= 2) {
        const std::int32_t other = from_thread(v, apart);
        v = other > v ? other : v;
    }
    return v;
}
inline std::uint32_t votes(bool is_set) {
    std::uint32_t found = 0;
    for (int i = 0; i < 32; ++i) found |= static_cast<std::uint32_t>(value_of<int>(is_set, i)) << i;
    return found;
}
// Adds the products of one 32-bit word of each thread to c; A and B are int8_t or uint8_t.
template <class A, class B>
void multiply_words(std::int32_t (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b) {
    struct Words {
        std::uint32_t low, high;
    };
    const int own = static_cast<int>(threadIdx.x) % 32, group = own / 4, column = own % 4 * 2;
    for (int t = 0; t < 4; ++t) {
        const Words rows = value_of(Words{a0, a1}, 4 * group + t);
        const std::uint32_t columns[2] = {value_of(b, 4 * column + t), value_of(b, 4 * column + 4 + t)};
        for (int i = 0; i < 4; ++i) {
            for (int j = 0; j < 32; j += 8) {
                c[i] += static_cast<A>((i / 2 == 0 ? rows.low : rows.high) >> j) *
                        static_cast<B>(columns[i % 2] >> j);
            }
        }
    }
}
#define CHASKI_MULTIPLY(name, A, B)                                                                      \
    inline void multiply_32_##name(std::int32_t (&c)[4], const std::uint32_t (&a)[4], std::uint32_t low, \
                                   std::uint32_t high) {                                                 \
        multiply_words<A, B>(c, a[0], a[1], low);                                                        \
        multiply_words<A, B>(c, a[2], a[3], high);                                                       \
    }                                                                                                    \
    inline void multiply_16_##name(std::int32_t (&c)[4], std::uint32_t a0, std::uint32_t a1,             \
                                   std::uint32_t b) {                                                    \
        multiply_words<A, B>(c, a0, a1, b);                                                              \
    }
CHASKI_MULTIPLY(ss, std::int8_t, std::int8_t)
CHASKI_MULTIPLY(su, std::int8_t, std::uint8_t)
CHASKI_MULTIPLY(us, std::uint8_t, std::int8_t)
CHASKI_MULTIPLY(uu, std::uint8_t, std::uint8_t)
#undef CHASKI_MULTIPLY
inline void load_matrices(std::uint32_t (&to)[4], const std::uint8_t* row) {
    if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) __builtin_trap();
    const int own = static_cast<int>(threadIdx.x) % 32;
    for (int i = 0; i < 4; ++i) std::memcpy(&to[i], value_of(row, 8 * i + own / 4) + own % 4 * 4, 4);
}
inline std::int32_t count_bits(std::uint32_t x) { return __builtin_popcount(x); }
inline void barrier() { emulated::barrier(); }
inline void barrier_of_warp() { value_of(0, 0); }
// A copy is executed when its thread waits for it. Until then, its target contains garbage.
struct Copy {
    std::uint8_t* to;
    const std::uint8_t* from;
    unsigned bytes, group;
};
struct Copies {
    static constexpr unsigned kMost = 512;
    unsigned of_block = 0, first = 0, last = 0, group = 0;
    Copy each[kMost];
};
inline Copies& own_copies() {
    static Copies* of_threads = new Copies[emulated::kMostThreads];
    Copies& own = of_threads[threadIdx.x];
    if (own.of_block != emulated::blocks_so_far) {
        own.of_block = emulated::blocks_so_far;
        own.first = own.last = own.group = 0;
    }
    return own;
}
inline void ask_copy(std::uint8_t* to, const std::uint8_t* from, unsigned bytes) {
    const auto places = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
    Copies& own = own_copies();
    if (places % bytes != 0 || own.last - own.first == Copies::kMost) __builtin_trap();
    std::memset(to, 0xa5, bytes);
    own.each[own.last++ % Copies::kMost] = {to, from, bytes, own.group};
}
template <int kAt = 0>
void copy_16(std::uint8_t* to, const std::uint8_t* from) {
    ask_copy(to + kAt, from + kAt, 16);
}
inline void copy_4(std::int32_t* to, const std::int32_t* from) {
    ask_copy(reinterpret_cast<std::uint8_t*>(to), reinterpret_cast<const std::uint8_t*>(from), 4);
}
inline void end_copies() { ++own_copies().group; }
// Waits for all groups of copies except the newest kLeft.
template <int kLeft>
void wait_copies() {
    Copies& own = own_copies();
    for (; own.first != own.last; ++own.first) {
        const Copy& next = own.each[own.first % Copies::kMost];
        if (next.group + kLeft >= own.group) return;
        std::memcpy(next.to, next.from, next.bytes);
    }
}
inline std::uint8_t* shared() { return emulated::shared; }
inline bool arrive(std::uint32_t* counter, std::uint32_t total) {
    if (*counter >= total) __builtin_trap();
    *counter = (*counter + 1) % total;
    return *counter == 0;
}
inline std::int32_t add_shared(std::int32_t* to, std::int32_t x) {
    const std::int32_t before = *to;
    *to += x;
    return before;
}
inline std::int32_t lower_shared(std::int32_t* to, std::int32_t x) {
    const std::int32_t before = *to;
    *to = x < before ? x : before;
    return before;
}

}  // namespace chaski::device
