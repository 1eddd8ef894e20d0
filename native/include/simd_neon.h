// simd.h for 64-bit ARM with the dot product of ARMv8.2: four registers per vector, lanes in order.
#pragma once

#include <arm_neon.h>

namespace chaski::CHASKI_ISA {

struct F32x16 {
    float32x4_t v[4];
};
struct I32x16 {
    int32x4_t v[4];
};
struct U8x64 {
    uint8x16_t v[4];
};

// A vector of f(0), ..., f(3): one register after the other.
template <class V, class F>
CHASKI_INLINE V quarters(const F& f) {
    return {{f(0), f(1), f(2), f(3)}};
}
#define CHASKI_QUARTER [&](int i) __attribute__((always_inline))

CHASKI_INLINE F32x16 load_f32(const float* p) {
    return quarters<F32x16>(CHASKI_QUARTER { return vld1q_f32(p + 4 * i); });
}
CHASKI_INLINE F32x16 load_f32(const float* p, int count) {
    float lanes[16] = {};
    __builtin_memcpy(lanes, p, count * sizeof(float));
    return load_f32(lanes);
}
CHASKI_INLINE void store_f32(float* p, F32x16 a) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.v[i]);
}
CHASKI_INLINE void store_f32(float* p, F32x16 a, int count) {
    float lanes[16];
    store_f32(lanes, a);
    __builtin_memcpy(p, lanes, count * sizeof(float));
}
CHASKI_INLINE F32x16 load_f16(const void* p) {
    const auto* bytes = static_cast<const uint8_t*>(p);
    return quarters<F32x16>(
        CHASKI_QUARTER { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(bytes + 8 * i))); });
}
CHASKI_INLINE I32x16 load_u16(const void* p) {
    const auto* bytes = static_cast<const uint8_t*>(p);
    return quarters<I32x16>(CHASKI_QUARTER {
        return vreinterpretq_s32_u32(vmovl_u16(vreinterpret_u16_u8(vld1_u8(bytes + 8 * i))));
    });
}
CHASKI_INLINE I32x16 load_i16(const void* p) {
    const auto* words = static_cast<const int16_t*>(p);
    return quarters<I32x16>(CHASKI_QUARTER { return vmovl_s16(vld1_s16(words + 4 * i)); });
}
CHASKI_INLINE I32x16 load_bytes(const void* p) {
    const uint8x16_t a = vld1q_u8(static_cast<const uint8_t*>(p));
    const uint16x8_t words[2] = {vmovl_u8(vget_low_u8(a)), vmovl_u8(vget_high_u8(a))};
    return quarters<I32x16>(CHASKI_QUARTER {
        const uint16x8_t pair = words[i / 2];
        return vreinterpretq_s32_u32(vmovl_u16(i % 2 == 0 ? vget_low_u16(pair) : vget_high_u16(pair)));
    });
}
CHASKI_INLINE I32x16 load_i8(const void* p) {
    const int8x16_t a = vld1q_s8(static_cast<const int8_t*>(p));
    const int16x8_t words[2] = {vmovl_s8(vget_low_s8(a)), vmovl_s8(vget_high_s8(a))};
    return quarters<I32x16>(CHASKI_QUARTER {
        return vmovl_s16(i % 2 == 0 ? vget_low_s16(words[i / 2]) : vget_high_s16(words[i / 2]));
    });
}
CHASKI_INLINE F32x16 widen_f16(I32x16 a) {
    return quarters<F32x16>(CHASKI_QUARTER {
        return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vreinterpretq_u32_s32(a.v[i]))));
    });
}
// The half-precision number at p in all lanes.
CHASKI_INLINE F32x16 splat_f16(const void* p) {
    const float32x4_t all = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(read<uint16_t>(p))));
    return {{all, all, all, all}};
}
CHASKI_INLINE F32x16 load_bf16(const void* p) {
    const auto* bytes = static_cast<const uint8_t*>(p);
    return quarters<F32x16>(CHASKI_QUARTER {
        return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(bytes + 8 * i)), 16));
    });
}
CHASKI_INLINE I32x16 load_i32(const int32_t* p) {
    return quarters<I32x16>(CHASKI_QUARTER { return vld1q_s32(p + 4 * i); });
}
CHASKI_INLINE void store_i32(int32_t* p, I32x16 a) {
    for (int i = 0; i < 4; ++i) vst1q_s32(p + 4 * i, a.v[i]);
}
CHASKI_INLINE U8x64 load_u8(const void* p) {
    const auto* bytes = static_cast<const uint8_t*>(p);
    return quarters<U8x64>(CHASKI_QUARTER { return vld1q_u8(bytes + 16 * i); });
}
CHASKI_INLINE void store_u8(void* p, U8x64 a) {
    for (int i = 0; i < 4; ++i) vst1q_u8(static_cast<uint8_t*>(p) + 16 * i, a.v[i]);
}

CHASKI_INLINE F32x16 splat(float x) {
    const float32x4_t all = vdupq_n_f32(x);
    return {{all, all, all, all}};
}
CHASKI_INLINE I32x16 splat(int32_t x) {
    const int32x4_t all = vdupq_n_s32(x);
    return {{all, all, all, all}};
}

CHASKI_INLINE F32x16 operator+(F32x16 a, F32x16 b) {
    return quarters<F32x16>(CHASKI_QUARTER { return vaddq_f32(a.v[i], b.v[i]); });
}
CHASKI_INLINE F32x16 operator-(F32x16 a) {
    return quarters<F32x16>(CHASKI_QUARTER { return vnegq_f32(a.v[i]); });
}
CHASKI_INLINE F32x16 operator*(F32x16 a, F32x16 b) {
    return quarters<F32x16>(CHASKI_QUARTER { return vmulq_f32(a.v[i], b.v[i]); });
}
CHASKI_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
    return quarters<F32x16>(CHASKI_QUARTER { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}
CHASKI_INLINE F32x16 to_f32(I32x16 a) {
    return quarters<F32x16>(CHASKI_QUARTER { return vcvtq_f32_s32(a.v[i]); });
}
CHASKI_INLINE F32x16 bit_cast_f32(I32x16 a) {
    return quarters<F32x16>(CHASKI_QUARTER { return vreinterpretq_f32_s32(a.v[i]); });
}
CHASKI_INLINE I32x16 round_to_i32(F32x16 a) {
    return quarters<I32x16>(CHASKI_QUARTER { return vcvtnq_s32_f32(a.v[i]); });
}
CHASKI_INLINE I32x16 truncate_to_i32(F32x16 a) {
    return quarters<I32x16>(CHASKI_QUARTER { return vcvtq_s32_f32(a.v[i]); });
}

CHASKI_INLINE I32x16 operator&(I32x16 a, I32x16 b) {
    return quarters<I32x16>(CHASKI_QUARTER { return vandq_s32(a.v[i], b.v[i]); });
}
CHASKI_INLINE I32x16 operator|(I32x16 a, I32x16 b) {
    return quarters<I32x16>(CHASKI_QUARTER { return vorrq_s32(a.v[i], b.v[i]); });
}
CHASKI_INLINE I32x16 operator+(I32x16 a, I32x16 b) {
    return quarters<I32x16>(CHASKI_QUARTER { return vaddq_s32(a.v[i], b.v[i]); });
}
CHASKI_INLINE I32x16 min(I32x16 a, I32x16 b) {
    return quarters<I32x16>(CHASKI_QUARTER { return vminq_s32(a.v[i], b.v[i]); });
}
CHASKI_INLINE I32x16 max(I32x16 a, I32x16 b) {
    return quarters<I32x16>(CHASKI_QUARTER { return vmaxq_s32(a.v[i], b.v[i]); });
}
template <int N>
CHASKI_INLINE I32x16 shift_left(I32x16 a) {
    return quarters<I32x16>(CHASKI_QUARTER { return vshlq_n_s32(a.v[i], N); });
}
template <int From, int Width>
CHASKI_INLINE I32x16 bits(I32x16 a) {
    return quarters<I32x16>(CHASKI_QUARTER {
        uint32x4_t moved = vreinterpretq_u32_s32(a.v[i]);
        if constexpr (From > 0) moved = vshrq_n_u32(moved, From);
        return vreinterpretq_s32_u32(vandq_u32(moved, vdupq_n_u32((1u << Width) - 1)));
    });
}

// The bits of |x| of all 16 floats. As integers they have the order of the numbers, with NaN above infinity.
CHASKI_INLINE I32x16 magnitude_bits(F32x16 a) {
    return quarters<I32x16>(CHASKI_QUARTER { return vreinterpretq_s32_f32(vabsq_f32(a.v[i])); });
}
CHASKI_INLINE int32_t reduce_max(I32x16 a) {
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.v[0], a.v[1]), vmaxq_s32(a.v[2], a.v[3])));
}
CHASKI_INLINE int32_t reduce_add(I32x16 a) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3])));
}
// Lanes as int8; they must be in range.
CHASKI_INLINE void store_i8(int8_t* p, I32x16 a) {
    const int16x8_t low = vcombine_s16(vmovn_s32(a.v[0]), vmovn_s32(a.v[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(a.v[2]), vmovn_s32(a.v[3]));
    vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
// Lanes as bytes; they must be in 0..255.
CHASKI_INLINE void store_bytes(uint8_t* p, I32x16 a) { store_i8(reinterpret_cast<int8_t*>(p), a); }

// Lanes as int16; they must be in range.
CHASKI_INLINE void store_i16(int16_t* p, I32x16 a) {
    for (int i = 0; i < 4; ++i) vst1_s16(p + 4 * i, vmovn_s32(a.v[i]));
}

template <int From, int Width, int To = 0>
CHASKI_INLINE U8x64 field(U8x64 a) {
    constexpr int kMask = ((1 << Width) - 1) << To;
    constexpr int kBy = From > To ? From - To : To - From;
    constexpr int kLeft = From > To ? 0xff >> kBy : 0xff << kBy & 0xff;  // by the shift
    return quarters<U8x64>(CHASKI_QUARTER {
        uint8x16_t moved = a.v[i];
        if constexpr (From > To) moved = vshrq_n_u8(moved, kBy);
        if constexpr (From < To) moved = vshlq_n_u8(moved, kBy);
        if constexpr (kMask != kLeft) moved = vandq_u8(moved, vdupq_n_u8(kMask));
        return moved;
    });
}
CHASKI_INLINE U8x64 operator|(U8x64 a, U8x64 b) {
    return quarters<U8x64>(CHASKI_QUARTER { return vorrq_u8(a.v[i], b.v[i]); });
}

CHASKI_INLINE I32x16 as_i32(U8x64 a) {
    return quarters<I32x16>(CHASKI_QUARTER { return vreinterpretq_s32_u8(a.v[i]); });
}
CHASKI_INLINE U8x64 as_bytes(I32x16 a) {
    return quarters<U8x64>(CHASKI_QUARTER { return vreinterpretq_u8_s32(a.v[i]); });
}
CHASKI_INLINE I32x16 times(I32x16 a, int n) {
    return quarters<I32x16>(CHASKI_QUARTER {
        return vreinterpretq_s32_s16(vmulq_n_s16(vreinterpretq_s16_s32(a.v[i]), static_cast<int16_t>(n)));
    });
}
template <int B>
CHASKI_INLINE I32x16 byte(U8x64 a) {
    return bits<8 * B, 8>(as_i32(a));
}
template <int B>
CHASKI_INLINE I32x16 signed_byte(U8x64 a) {
    return quarters<I32x16>(
        CHASKI_QUARTER { return vshrq_n_s32(vshlq_n_s32(vreinterpretq_s32_u8(a.v[i]), 24 - 8 * B), 24); });
}
CHASKI_INLINE U8x64 lookup(const uint8_t* table, U8x64 index) {
    const uint8x16_t entries = vld1q_u8(table);
    return quarters<U8x64>(CHASKI_QUARTER { return vqtbl1q_u8(entries, index.v[i]); });
}

template <int B>
CHASKI_INLINE U8x64 copy_byte(U8x64 a) {
    constexpr uint64_t kLow = 0x0404040400000000u + B * 0x0101010101010101u;
    const uint8x16_t places = vreinterpretq_u8_u64(uint64x2_t{kLow, kLow + 0x0808080808080808u});
    return quarters<U8x64>(CHASKI_QUARTER { return vqtbl1q_u8(a.v[i], places); });
}
template <int From>
CHASKI_INLINE U8x64 mirror(U8x64 a, U8x64 signs, int top) {
    const uint8x16_t bits = vreinterpretq_u8_u32(vdupq_n_u32(0x08040201u << From % 8));
    const uint8x16_t tops = vdupq_n_u8(static_cast<uint8_t>(top));
    const U8x64 own = copy_byte<From / 8>(signs);
    return quarters<U8x64>(
        CHASKI_QUARTER { return vbslq_u8(vtstq_u8(own.v[i], bits), vsubq_u8(tops, a.v[i]), a.v[i]); });
}
CHASKI_INLINE U8x64 gather(const uint32_t* table, I32x16 index) {
    return quarters<U8x64>(CHASKI_QUARTER {
        const int32x4_t own = index.v[i];
        return vreinterpretq_u8_u32(uint32x4_t{table[own[0]], table[own[1]], table[own[2]], table[own[3]]});
    });
}

// The dot product takes signed bytes: larger codes are multiplied as code - 128.
template <int kMaxCode>
inline constexpr int dot4_bias = kMaxCode > 127 ? 128 : 0;

template <int kMaxCode>
CHASKI_INLINE I32x16 dot4(I32x16 acc, U8x64 w, int32_t x) {
    const int8x8_t four = vreinterpret_s8_s32(int32x2_t{x, 0});  // in one lane; needs no instruction
    return quarters<I32x16>(CHASKI_QUARTER {
        uint8x16_t codes = w.v[i];
        if constexpr (dot4_bias<kMaxCode> != 0) codes = veorq_u8(codes, vdupq_n_u8(128));
        return vdotq_lane_s32(acc.v[i], vreinterpretq_s8_u8(codes), four, 0);
    });
}

CHASKI_INLINE I32x16 dot2(I32x16 acc, I32x16 w, I32x16 x) {
    return quarters<I32x16>(CHASKI_QUARTER {
        const int16x8_t a = vreinterpretq_s16_s32(w.v[i]), b = vreinterpretq_s16_s32(x.v[i]);
        const int32x4_t low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
        return vaddq_s32(acc.v[i], vpaddq_s32(low, vmull_high_s16(a, b)));
    });
}

CHASKI_INLINE I32x16 pairs(I32x16 a, I32x16 b) {
    return quarters<I32x16>(CHASKI_QUARTER { return vsliq_n_s32(a.v[i], b.v[i], 16); });
}
CHASKI_INLINE I32x16 shift_pairs(I32x16 w, int32_t by) {
    const int16x8_t all = vreinterpretq_s16_s32(vdupq_n_s32(by));
    return quarters<I32x16>(
        CHASKI_QUARTER { return vreinterpretq_s32_s16(vshlq_s16(vreinterpretq_s16_s32(w.v[i]), all)); });
}

#undef CHASKI_QUARTER

}  // namespace chaski::CHASKI_ISA
