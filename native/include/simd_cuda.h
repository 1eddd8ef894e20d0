// simd.h for a GPU: a lane is a thread. The 16 lanes of a vector are half a warp, so the size of thread
// blocks is a multiple of 16, and lane i of a group is thread i of it. Each thread does for its own lane what
// other instruction sets do for all lanes at once; only sums and maxima over lanes involve several threads.
//
// device.h defines the processor's own instructions.
#pragma once

#include "device.h"

namespace chaski::CHASKI_ISA {

struct F32x16 {
    float v;
};
struct I32x16 {
    int32_t v;
};
struct U8x64 {
    uint32_t v;  // byte b is bits 8 b to 8 b + 7
};

CHASKI_INLINE int lane() { return threadIdx.x % 16; }

// The element of this lane.
template <class T>
CHASKI_INLINE T own(const void* p) {
    return static_cast<const T*>(p)[lane()];
}

CHASKI_INLINE F32x16 load_f32(const float* p) { return {p[lane()]}; }
CHASKI_INLINE F32x16 load_f32(const float* p, int count) { return {lane() < count ? p[lane()] : 0.0f}; }
CHASKI_INLINE void store_f32(float* p, F32x16 a) { p[lane()] = a.v; }
CHASKI_INLINE void store_f32(float* p, F32x16 a, int count) {
    if (lane() < count) p[lane()] = a.v;
}
CHASKI_INLINE I32x16 load_u16(const void* p) { return {own<uint16_t>(p)}; }
CHASKI_INLINE I32x16 load_i16(const void* p) { return {own<int16_t>(p)}; }
CHASKI_INLINE I32x16 load_bytes(const void* p) { return {own<uint8_t>(p)}; }
CHASKI_INLINE I32x16 load_i8(const void* p) { return {own<int8_t>(p)}; }
CHASKI_INLINE F32x16 load_f16(const void* p) { return {device::widen_f16(own<uint16_t>(p))}; }
CHASKI_INLINE F32x16 widen_f16(I32x16 a) { return {device::widen_f16(static_cast<uint16_t>(a.v))}; }
CHASKI_INLINE U8x64 load_u8(const void* p) { return {own<uint32_t>(p)}; }

CHASKI_INLINE F32x16 splat(float x) { return {x}; }
CHASKI_INLINE I32x16 splat(int32_t x) { return {x}; }

CHASKI_INLINE F32x16 operator+(F32x16 a, F32x16 b) { return {a.v + b.v}; }
CHASKI_INLINE F32x16 operator-(F32x16 a) { return {-a.v}; }
CHASKI_INLINE F32x16 operator*(F32x16 a, F32x16 b) { return {a.v * b.v}; }
CHASKI_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {device::fma(a.v, b.v, c.v)}; }
CHASKI_INLINE F32x16 to_f32(I32x16 a) { return {static_cast<float>(a.v)}; }
CHASKI_INLINE F32x16 bit_cast_f32(I32x16 a) { return {device::as_float(a.v)}; }
CHASKI_INLINE I32x16 round_to_i32(F32x16 a) { return {device::round(a.v)}; }

CHASKI_INLINE I32x16 operator&(I32x16 a, I32x16 b) { return {a.v & b.v}; }
CHASKI_INLINE I32x16 operator|(I32x16 a, I32x16 b) { return {a.v | b.v}; }
CHASKI_INLINE I32x16 operator+(I32x16 a, I32x16 b) { return {a.v + b.v}; }
CHASKI_INLINE I32x16 min(I32x16 a, I32x16 b) { return {a.v < b.v ? a.v : b.v}; }
CHASKI_INLINE I32x16 max(I32x16 a, I32x16 b) { return {a.v > b.v ? a.v : b.v}; }
template <int N>
CHASKI_INLINE I32x16 shift_left(I32x16 a) {
    return {static_cast<int32_t>(static_cast<uint32_t>(a.v) << N)};
}
template <int From, int Width>
CHASKI_INLINE I32x16 bits(I32x16 a) {
    return {a.v >> From & ((1 << Width) - 1)};
}

// Combines all lanes with f over the tree of vector_math.h: lane i with lane i + 8, and so on. Every lane
// gets the result.
template <class T, class F>
CHASKI_INLINE T fold_lanes(T v, const F& f) {
    for (int apart = 8; apart > 0; apart /= 2) v = f(v, device::from_lane(v, apart));
    return v;
}

CHASKI_INLINE I32x16 magnitude_bits(F32x16 a) { return {device::as_int(a.v) & 0x7fffffff}; }
CHASKI_INLINE int32_t reduce_max(I32x16 a) {
    return fold_lanes(a.v, [](int32_t x, int32_t y) { return x > y ? x : y; });
}

template <int From, int Width, int To = 0>
CHASKI_INLINE U8x64 field(U8x64 a) {
    constexpr uint32_t kMask = 0x01010101u * (((1u << Width) - 1) << To);
    constexpr int kDown = From > To ? From - To : 0;
    constexpr int kUp = To > From ? To - From : 0;
    return {a.v >> kDown << kUp & kMask};
}
CHASKI_INLINE U8x64 operator|(U8x64 a, U8x64 b) { return {a.v | b.v}; }

CHASKI_INLINE I32x16 as_i32(U8x64 a) { return {static_cast<int32_t>(a.v)}; }
CHASKI_INLINE U8x64 as_bytes(I32x16 a) { return {static_cast<uint32_t>(a.v)}; }
CHASKI_INLINE I32x16 times(I32x16 a, int n) { return {a.v * n}; }
template <int B>
CHASKI_INLINE I32x16 byte(U8x64 a) {
    return {static_cast<int32_t>(a.v >> 8 * B & 255)};
}
template <int B>
CHASKI_INLINE I32x16 signed_byte(U8x64 a) {
    return {static_cast<int32_t>(a.v << (24 - 8 * B)) >> 24};
}

// The tables of 16 bytes are constants, so they lie in four registers; bit 3 of an index chooses a half.
CHASKI_INLINE U8x64 lookup(const uint8_t* table, U8x64 index) {
    uint32_t words[4] = {};
    for (int i = 0; i < 16; ++i) words[i / 4] |= static_cast<uint32_t>(table[i]) << 8 * (i % 4);
    const uint32_t packed = index.v | index.v >> 4;  // two indices in bytes 0 and 2
    const uint32_t selector = (packed & 0xff) | (packed >> 8 & 0xff00);
    const uint32_t low = device::select_bytes(words[0], words[1], selector & 0x7777);
    const uint32_t high = device::select_bytes(words[2], words[3], selector & 0x7777);
    const uint32_t is_high = (index.v >> 3 & 0x01010101u) * 255;
    return {low ^ ((low ^ high) & is_high)};
}

template <int B>
CHASKI_INLINE U8x64 copy_byte(U8x64 a) {
    return {(a.v >> 8 * B & 255) * 0x01010101u};
}
template <int From>
CHASKI_INLINE U8x64 mirror(U8x64 a, U8x64 signs, int top) {
    const uint32_t is_set = ((signs.v >> From & 15) * 0x00204081u & 0x01010101u) * 255;
    const uint32_t tops = 0x01010101u * static_cast<uint32_t>(top);
    return {(a.v & ~is_set) | ((tops - a.v) & is_set)};
}
CHASKI_INLINE U8x64 gather(const uint32_t* table, I32x16 index) { return {table[index.v]}; }

template <int kMaxCode>
inline constexpr int dot4_bias = 0;

template <int kMaxCode>
CHASKI_INLINE I32x16 dot4(I32x16 acc, U8x64 w, int32_t x) {
    return {device::dot4(acc.v, w.v, x)};
}
CHASKI_INLINE I32x16 dot2(I32x16 acc, I32x16 w, I32x16 x) {
    return {acc.v + static_cast<int16_t>(w.v) * static_cast<int16_t>(x.v) + (w.v >> 16) * (x.v >> 16)};
}
CHASKI_INLINE I32x16 pairs(I32x16 a, I32x16 b) {
    return {static_cast<int32_t>((a.v & 0xffff) | static_cast<uint32_t>(b.v) << 16)};
}

}  // namespace chaski::CHASKI_ISA
