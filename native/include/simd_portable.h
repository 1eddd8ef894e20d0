// simd.h without intrinsics, for any processor. It uses vector extensions, which the compiler splits into
// vectors of the machine. It defines what the other sets must compute.
#pragma once

namespace chaski::CHASKI_ISA {

using Float16 = float __attribute__((vector_size(64)));
using Int16 = int32_t __attribute__((vector_size(64)));
using Uint16 = uint32_t __attribute__((vector_size(64)));

struct F32x16 {
    Float16 v;
};
struct I32x16 {
    Int16 v;
};
struct U8x64 {
    Uint16 v;  // byte b of a lane is bits 8 b to 8 b + 7
};

CHASKI_INLINE F32x16 load_f32(const float* p) { return {read<Float16>(p)}; }
CHASKI_INLINE F32x16 load_f32(const float* p, int count) {
    F32x16 a{};
    for (int i = 0; i < count; ++i) a.v[i] = p[i];
    return a;
}
CHASKI_INLINE void store_f32(float* p, F32x16 a) { write(p, a.v); }
CHASKI_INLINE void store_f32(float* p, F32x16 a, int count) {
    for (int i = 0; i < count; ++i) p[i] = a.v[i];
}
CHASKI_INLINE I32x16 load_u16(const void* p) {
    return {__builtin_convertvector(read<uint16_t __attribute__((vector_size(32)))>(p), Int16)};
}
CHASKI_INLINE I32x16 load_i16(const void* p) {
    return {__builtin_convertvector(read<int16_t __attribute__((vector_size(32)))>(p), Int16)};
}
CHASKI_INLINE I32x16 load_bytes(const void* p) {
    return {__builtin_convertvector(read<uint8_t __attribute__((vector_size(16)))>(p), Int16)};
}
// Half precision to single. Scaling is exact, also for subnormal numbers; infinities and NaNs keep their
// exponent of ones, and a NaN becomes quiet, as in hardware.
CHASKI_INLINE F32x16 widen_f16(I32x16 a) {
    const Int16 h = a.v;
    const Int16 magnitude = (h & 0x7fff) << 13;
    const Int16 finite = __builtin_bit_cast(Int16, __builtin_bit_cast(Float16, magnitude) * 0x1p112f);
    const Int16 special = magnitude | 0x7f800000 | ((magnitude > 0x0f800000) & 0x00400000);
    const Int16 is_special = magnitude >= 0x0f800000;
    return {
        __builtin_bit_cast(Float16, (is_special & special) | (~is_special & finite) | (h & 0x8000) << 16)};
}
CHASKI_INLINE F32x16 load_f16(const void* p) { return widen_f16(load_u16(p)); }
CHASKI_INLINE I32x16 load_i8(const void* p) {
    return {__builtin_convertvector(read<int8_t __attribute__((vector_size(16)))>(p), Int16)};
}
// The half-precision number at p in all lanes.
CHASKI_INLINE F32x16 splat_f16(const void* p) {
    uint16_t lanes[16];
    for (uint16_t& lane : lanes) lane = read<uint16_t>(p);
    return load_f16(lanes);
}
CHASKI_INLINE F32x16 load_bf16(const void* p) { return {__builtin_bit_cast(Float16, load_u16(p).v << 16)}; }
CHASKI_INLINE I32x16 load_i32(const int32_t* p) { return {read<Int16>(p)}; }
CHASKI_INLINE void store_i32(int32_t* p, I32x16 a) { write(p, a.v); }
CHASKI_INLINE U8x64 load_u8(const void* p) { return {read<Uint16>(p)}; }
CHASKI_INLINE void store_u8(void* p, U8x64 a) { write(p, a.v); }

CHASKI_INLINE F32x16 splat(float x) { return {x - Float16{}}; }  // keeps -0 as it is
CHASKI_INLINE I32x16 splat(int32_t x) { return {Int16{} + x}; }

CHASKI_INLINE F32x16 operator+(F32x16 a, F32x16 b) { return {a.v + b.v}; }
CHASKI_INLINE F32x16 operator-(F32x16 a) { return {-a.v}; }
CHASKI_INLINE F32x16 operator*(F32x16 a, F32x16 b) { return {a.v * b.v}; }
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
    for (int i = 0; i < 16; ++i) c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
    return c;
}
CHASKI_INLINE F32x16 to_f32(I32x16 a) { return {__builtin_convertvector(a.v, Float16)}; }
CHASKI_INLINE F32x16 bit_cast_f32(I32x16 a) { return {__builtin_bit_cast(Float16, a.v)}; }
CHASKI_INLINE I32x16 round_to_i32(F32x16 a) {
    I32x16 r{};
    for (int i = 0; i < 16; ++i) r.v[i] = static_cast<int32_t>(__builtin_rintf(a.v[i]));
    return r;
}
CHASKI_INLINE I32x16 truncate_to_i32(F32x16 a) { return {__builtin_convertvector(a.v, Int16)}; }

CHASKI_INLINE I32x16 operator&(I32x16 a, I32x16 b) { return {a.v & b.v}; }
CHASKI_INLINE I32x16 operator|(I32x16 a, I32x16 b) { return {a.v | b.v}; }
CHASKI_INLINE I32x16 operator+(I32x16 a, I32x16 b) { return {a.v + b.v}; }
CHASKI_INLINE I32x16 min(I32x16 a, I32x16 b) { return {a.v < b.v ? a.v : b.v}; }
CHASKI_INLINE I32x16 max(I32x16 a, I32x16 b) { return {a.v > b.v ? a.v : b.v}; }
template <int N>
CHASKI_INLINE I32x16 shift_left(I32x16 a) {
    return {a.v << N};
}
template <int From, int Width>
CHASKI_INLINE I32x16 bits(I32x16 a) {
    return {a.v >> From & ((1 << Width) - 1)};
}

// The bits of |x| of all 16 floats. As integers they have the order of the numbers, with NaN above infinity.
CHASKI_INLINE I32x16 magnitude_bits(F32x16 a) { return {__builtin_bit_cast(Int16, a.v) & 0x7fffffff}; }
CHASKI_INLINE int32_t reduce_max(I32x16 a) {
    int32_t r = a.v[0];
    for (int i = 1; i < 16; ++i) r = a.v[i] > r ? a.v[i] : r;
    return r;
}
CHASKI_INLINE int32_t reduce_add(I32x16 a) {
    int32_t r = 0;
    for (int i = 0; i < 16; ++i) r += a.v[i];
    return r;
}
// Lanes as int8; they must be in range.
CHASKI_INLINE void store_i8(int8_t* p, I32x16 a) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(a.v[i]);
}
// Lanes as bytes; they must be in 0..255.
CHASKI_INLINE void store_bytes(uint8_t* p, I32x16 a) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<uint8_t>(a.v[i]);
}

// Lanes as int16; they must be in range.
CHASKI_INLINE void store_i16(int16_t* p, I32x16 a) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<int16_t>(a.v[i]);
}

template <int From, int Width, int To = 0>
CHASKI_INLINE U8x64 field(U8x64 a) {
    constexpr uint32_t kMask = 0x01010101u * (((1u << Width) - 1) << To);
    constexpr int kDown = From > To ? From - To : 0;
    constexpr int kUp = To > From ? To - From : 0;
    return {a.v >> kDown << kUp & kMask};
}
CHASKI_INLINE U8x64 operator|(U8x64 a, U8x64 b) { return {a.v | b.v}; }

CHASKI_INLINE I32x16 as_i32(U8x64 a) { return {__builtin_bit_cast(Int16, a.v)}; }
CHASKI_INLINE U8x64 as_bytes(I32x16 a) { return {__builtin_bit_cast(Uint16, a.v)}; }
CHASKI_INLINE I32x16 times(I32x16 a, int n) { return {a.v * n}; }
template <int B>
CHASKI_INLINE I32x16 byte(U8x64 a) {
    return {__builtin_bit_cast(Int16, a.v >> 8 * B & 255)};
}
template <int B>
CHASKI_INLINE I32x16 signed_byte(U8x64 a) {
    return {__builtin_bit_cast(Int16, a.v << (24 - 8 * B)) >> 24};
}
inline U8x64 lookup(const uint8_t* table, U8x64 index) {
    uint8_t bytes[64];
    write(bytes, index.v);
    for (uint8_t& b : bytes) b = table[b];
    return {read<Uint16>(bytes)};
}

template <int B>
CHASKI_INLINE U8x64 copy_byte(U8x64 a) {
    return {(a.v >> 8 * B & 255) * 0x01010101u};
}
template <int From>
CHASKI_INLINE U8x64 mirror(U8x64 a, U8x64 signs, int top) {
    const Uint16 is_set = ((signs.v >> From & 15) * 0x00204081u & 0x01010101u) * 255;
    const uint32_t tops = 0x01010101u * static_cast<uint32_t>(top);
    return {(a.v & ~is_set) | ((tops - a.v) & is_set)};
}
inline U8x64 gather(const uint32_t* table, I32x16 index) {
    U8x64 entries{};
    for (int i = 0; i < 16; ++i) entries.v[i] = table[index.v[i]];
    return entries;
}

template <int kMaxCode>
inline constexpr int dot4_bias = 0;

// Products fit 16 bits, but their sums do not: even and odd bytes are multiplied as words, and the words are
// added as dwords.
template <int kMaxCode>
CHASKI_INLINE I32x16 dot4(I32x16 acc, U8x64 w, int32_t x) {
    using Words = int16_t __attribute__((vector_size(64)));
    const auto words = [](int32_t low, int32_t high) {
        return __builtin_bit_cast(Words, Int16{} + ((low & 0xffff) | high << 16));
    };
    const auto byte_of = [x](int b) { return static_cast<int32_t>(static_cast<int8_t>(x >> 8 * b)); };
    const Words even = __builtin_bit_cast(Words, w.v & 0x00ff00ffu) * words(byte_of(0), byte_of(2));
    const Words odd = __builtin_bit_cast(Words, w.v >> 8 & 0x00ff00ffu) * words(byte_of(1), byte_of(3));
    const Int16 e = __builtin_bit_cast(Int16, even), o = __builtin_bit_cast(Int16, odd);
    return {acc.v + (e << 16 >> 16) + (e >> 16) + (o << 16 >> 16) + (o >> 16)};
}

CHASKI_INLINE I32x16 dot2(I32x16 acc, I32x16 w, I32x16 x) {
    return {acc.v + (w.v << 16 >> 16) * (x.v << 16 >> 16) + (w.v >> 16) * (x.v >> 16)};
}

CHASKI_INLINE I32x16 pairs(I32x16 a, I32x16 b) { return {(a.v & 0xffff) | b.v << 16}; }
CHASKI_INLINE I32x16 shift_pairs(I32x16 w, int32_t by) {
    return pairs({w.v << (by & 0xffff)}, {w.v >> 16 << (by >> 16)});
}

}  // namespace chaski::CHASKI_ISA
