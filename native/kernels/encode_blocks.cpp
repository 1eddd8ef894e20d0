// Encodes rows of floats as plain numbers, and blocks without a search, by the rule of ggml's reference code,
// https://github.com/ggml-org/ggml. The scales of 16 blocks of 32 are computed together, one block per lane.
#include <cmath>

#include "entry_points.h"
#include "vector_math.h"

namespace chaski::CHASKI_ISA {
namespace {

constexpr int kBlock = 32, kGroup = kLanes * kBlock;

// One number for each block of a group.
struct alignas(64) PerBlock {
    float v[kLanes];
};

CHASKI_INLINE F32x16 load_half(const float* x, int block, int half) {
    return load_f32(x + kBlock * block + kLanes * half);
}

// The largest magnitude of a group as the bits of a float; NaN is the largest.
CHASKI_INLINE int32_t largest_bits(const float* x) {
    I32x16 largest = magnitude_bits(load_f32(x));
    for (int i = 1; i < kGroup / kLanes; ++i) {
        largest = max(largest, magnitude_bits(load_f32(x + kLanes * i)));
    }
    return reduce_max(largest);
}

// 1 / d, or 0 if that is infinite, because such a scale is 0 in half precision.
CHASKI_INLINE float inverse_of(float d) {
    const float inverse = 1.0f / d;
    return std::fabs(inverse) < INFINITY ? inverse : 0.0f;
}

// Writes the scales in half precision to the first field of each block. Returns the factors of the values.
PerBlock write_scales(F32x16 d, int block_bytes, uint8_t* out) {
    uint16_t halves[kLanes];
    store_f16(halves, d);
    PerBlock inverse;
    store_f32(inverse.v, d);
    for (int b = 0; b < kLanes; ++b) write(out + block_bytes * b, halves[b]);
    for (float& each : inverse.v) each = inverse_of(each);
    return inverse;
}

// The largest value of each block, and with `kSign` -1 the largest of the negated values.
template <int kSign>
F32x16 highest(const float* x) {
    F32x16 each[kLanes];
    for (int b = 0; b < kLanes; ++b) {
        const F32x16 low = load_half(x, b, 0), high = load_half(x, b, 1);
        each[b] = kSign > 0 ? max(low, high) : max(-low, -high);
    }
    return max_each(each);
}

// The first value of this magnitude in a block; 0 for 0.
float first_of(const float* x, float magnitude) {
    for (int i = 0; i < kBlock && magnitude > 0.0f; ++i) {
        if (std::fabs(x[i]) == magnitude) return x[i];
    }
    return 0.0f;
}

// The first zero of a block, whose sign is kept.
float first_zero(const float* x) {
    int i = 0;
    while (x[i] != 0.0f) ++i;
    return x[i];
}

// The value of largest magnitude of each block, with its sign; the first one if two are equal.
PerBlock find_extremes(const float* x) {
    PerBlock high, negated_low, extreme;
    store_f32(high.v, highest<1>(x));
    store_f32(negated_low.v, highest<-1>(x));
    for (int b = 0; b < kLanes; ++b) {
        extreme.v[b] = high.v[b] > negated_low.v[b] ? high.v[b] : -negated_low.v[b];
    }
    for (int b = 0; b < kLanes; ++b) {
        if (high.v[b] == negated_low.v[b]) extreme.v[b] = first_of(x + kBlock * b, high.v[b]);
    }
    return extreme;
}

struct Span {
    PerBlock low, size;
};

// The smallest value of each block (the first zero if two have different signs), and its distance to the
// largest.
Span find_spans(const float* x) {
    Span span;
    const F32x16 high = highest<1>(x), low = -highest<-1>(x);
    store_f32(span.low.v, low);
    store_f32(span.size.v, high - low + splat(0.0f));  // no -0
    for (int b = 0; b < kLanes; ++b) {
        if (span.low.v[b] == 0.0f) span.low.v[b] = first_zero(x + kBlock * b);
    }
    return span;
}

// Bit i of the result is the lowest bit of byte i.
CHASKI_INLINE uint32_t lowest_bits(uint64_t bytes) {
    return static_cast<uint32_t>((bytes & 0x0101010101010101u) * 0x0102040810204080u >> 56);
}

// Writes 32 levels: four bits each, and with kBits 5 the fifth bits before them.
template <int kBits>
CHASKI_INLINE void write_levels(I32x16 low, I32x16 high, uint8_t* out) {
    if constexpr (kBits == 4) {
        store_bytes(out, low | shift_left<4>(high));
    } else {
        uint8_t fifth[kLanes];
        store_bytes(fifth, bits<4, 1>(low) | shift_left<1>(bits<4, 1>(high)));
        const auto first = read<uint64_t>(fifth), last = read<uint64_t>(fifth + 8);
        const uint32_t of_low = lowest_bits(first) | lowest_bits(last) << 8;
        const uint32_t of_high = lowest_bits(first >> 1) | lowest_bits(last >> 1) << 8;
        write(out, of_low | of_high << 16);
        store_bytes(out + 4, bits<0, 4>(low) | shift_left<4>(bits<0, 4>(high)));
    }
}

// Levels are whole parts of x * inverse + offset.
template <int kBits>
CHASKI_INLINE I32x16 level_of(F32x16 x, F32x16 inverse, float offset) {
    return min(truncate_to_i32(x * inverse + splat(offset)), splat((1 << kBits) - 1));
}

// Q4_0 and Q5_0: the extreme becomes the lowest level, whatever its sign.
template <DType T, int kBits>
void encode_symmetric(const float* x, uint8_t* out) {
    constexpr int kBytes = find_format(T)->bytes, kLowest = -(1 << (kBits - 1));
    const PerBlock extreme = find_extremes(x);
    const PerBlock inverse =
        write_scales(load_f32(extreme.v) / splat(static_cast<float>(kLowest)), kBytes, out);
    for (int b = 0; b < kLanes; ++b, out += kBytes) {
        const F32x16 by = splat(inverse.v[b]);
        const auto level = [&](int half) __attribute__((always_inline)) {
            return level_of<kBits>(load_half(x, b, half), by, 0.5f - kLowest);
        };
        write_levels<kBits>(level(0), level(1), out + 2);
    }
}

// Q4_1 and Q5_1: the smallest value becomes level 0, the largest the highest level.
template <DType T, int kBits>
void encode_affine(const float* x, uint8_t* out) {
    constexpr int kBytes = find_format(T)->bytes, kTop = (1 << kBits) - 1;
    const Span span = find_spans(x);
    const PerBlock inverse =
        write_scales(load_f32(span.size.v) / splat(static_cast<float>(kTop)), kBytes, out);
    uint16_t minimums[kLanes];
    store_f16(minimums, load_f32(span.low.v));
    for (int b = 0; b < kLanes; ++b, out += kBytes) {
        const F32x16 by = splat(inverse.v[b]), low = splat(span.low.v[b]);
        const auto level = [&](int half) __attribute__((always_inline)) {
            return level_of<kBits>(load_half(x, b, half) - low, by, 0.5f);
        };
        write(out + 2, minimums[b]);
        write_levels<kBits>(level(0), level(1), out + 4);
    }
}

// Rounds halves away from zero.
CHASKI_INLINE I32x16 round_away(F32x16 x) {
    const I32x16 whole = truncate_to_i32(x);
    const F32x16 rest = x - to_f32(whole);
    return whole + truncate_to_i32(rest + rest);
}

// The largest magnitude becomes level 127.
void encode_q8_0(const float* x, uint8_t* out) {
    constexpr int kBytes = find_format(DType::Q8_0)->bytes;
    I32x16 magnitudes[kLanes];
    for (int b = 0; b < kLanes; ++b) {
        magnitudes[b] = max(magnitude_bits(load_half(x, b, 0)), magnitude_bits(load_half(x, b, 1)));
    }
    const F32x16 largest = bit_cast_f32(max_each(magnitudes));
    const PerBlock inverse = write_scales(largest / splat(127.0f), kBytes, out);
    for (int b = 0; b < kLanes; ++b, out += kBytes) {
        const F32x16 by = splat(inverse.v[b]);
        auto* levels = reinterpret_cast<int8_t*>(out + 2);
        store_i8(levels, round_away(load_half(x, b, 0) * by));
        store_i8(levels + kLanes, round_away(load_half(x, b, 1) * by));
    }
}

// 1 for negative numbers, else 0, also for -0.
CHASKI_INLINE I32x16 is_negative(F32x16 x) { return min(magnitude_bits(max(-x, splat(0.0f))), splat(1)); }

// Signs, and the mean magnitude, added up in the order of elements.
void encode_q1_0(const float* x, uint8_t* out) {
    constexpr BlockFormat kFormat = *find_format(DType::Q1_0);
    for (int from = 0; from < kGroup; from += kFormat.elements, out += kFormat.bytes) {
        float sum = 0.0f;
        for (int i = 0; i < kFormat.elements; ++i) sum += std::fabs(x[from + i]);
        uint16_t mean[kLanes];
        store_f16(mean, splat(sum / static_cast<float>(kFormat.elements)));
        write(out, mean[0]);
        for (int i = 0; i < kFormat.elements; i += kLanes) {
            uint8_t negative[kLanes];
            store_bytes(negative, is_negative(load_f32(x + from + i)));
            const uint32_t bits =
                lowest_bits(read<uint64_t>(negative)) | lowest_bits(read<uint64_t>(negative + 8)) << 8;
            write(out + 2 + i / 8, static_cast<uint16_t>(~bits));
        }
    }
}

// The nearest of ggml's numbers of four bits of exponent and three of mantissa, from half upwards; numbers of
// 256 and more become 448.
uint8_t e4m3_of(float x) {
    if (!(x > 0.0f)) return 0;
    const auto number = __builtin_bit_cast(uint32_t, x);
    const int exponent = static_cast<int>(number >> 23) - 120;
    if (exponent <= 0) {
        const auto mantissa = static_cast<int>(x * 512.0f + 0.5f);
        return static_cast<uint8_t>(mantissa < 7 ? mantissa : 7);
    }
    const int rounded = exponent * 8 + static_cast<int>((number >> 20 & 7) + (number >> 19 & 1));
    return static_cast<uint8_t>(rounded < 120 ? rounded : 126);
}

// Half of the number.
float half_of_e4m3(uint8_t e4m3) {
    const int exponent = e4m3 >> 3, mantissa = e4m3 & 7;
    if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-10f;
    return __builtin_bit_cast(float, (exponent + 119) << 23 | mantissa << 20);
}

// The largest magnitude of 16 elements becomes the highest level, 12 halves. Each value takes the nearest
// level, the lower magnitude of two: the levels' middles are compared as bits of floats.
void encode_nvfp4(const float* x, uint8_t* out) {
    constexpr BlockFormat kFormat = *find_format(DType::NVFP4);
    constexpr float kMiddles[] = {0.5f, 1.5f, 2.5f, 3.5f, 5.0f, 7.0f, 10.0f};
    for (int from = 0; from < kGroup; from += kFormat.elements, out += kFormat.bytes) {
        for (int s = 0; s < kFormat.elements / kLanes; ++s) {
            const F32x16 values = load_f32(x + from + kLanes * s);
            const I32x16 magnitudes = magnitude_bits(values);
            out[s] = e4m3_of(__builtin_bit_cast(float, reduce_max(magnitudes)) / 6.0f);
            const float d = out[s] == 0 ? INFINITY : half_of_e4m3(out[s]);
            I32x16 level = splat(0);
            for (const float middle : kMiddles) {
                const I32x16 above = magnitudes + splat(-__builtin_bit_cast(int32_t, middle* d));
                level = level + min(max(above, splat(0)), splat(1));
            }
            uint8_t codes[kLanes];
            store_bytes(codes, level | shift_left<3>(min(level, splat(1)) & is_negative(values)));
            write(out + 4 + 8 * s, read<uint64_t>(codes) | read<uint64_t>(codes + 8) << 4);
        }
    }
}

void encode_f32(const float* x, uint8_t* out) { __builtin_memcpy(out, x, kGroup * sizeof(float)); }

template <auto kStore>
void encode_halves(const float* x, uint8_t* out) {
    for (int i = 0; i < kGroup; i += kLanes, out += 2 * kLanes) {
        kStore(reinterpret_cast<uint16_t*>(out), load_f32(x + i));
    }
}

using EncodeGroup = void (*)(const float* x, uint8_t* out);

EncodeGroup encoder_of(DType type) {
    switch (type) {
        case DType::F16:
            return encode_halves<store_f16>;
        case DType::BF16:
            return encode_halves<store_bf16>;
        case DType::Q4_0:
            return encode_symmetric<DType::Q4_0, 4>;
        case DType::Q4_1:
            return encode_affine<DType::Q4_1, 4>;
        case DType::Q5_0:
            return encode_symmetric<DType::Q5_0, 5>;
        case DType::Q5_1:
            return encode_affine<DType::Q5_1, 5>;
        case DType::Q8_0:
            return encode_q8_0;
        case DType::Q1_0:
            return encode_q1_0;
        case DType::NVFP4:
            return encode_nvfp4;
        default:
            return encode_f32;
    }
}

}  // namespace

float encode_blocks(DType type, const float* x, int64_t n, float limit, uint8_t* out) {
    const EncodeGroup encode = encoder_of(type);
    const BlockFormat& format = *find_format(type);
    const int group_bytes = kGroup / format.elements * format.bytes;
    const auto highest = __builtin_bit_cast(int32_t, limit);
    int32_t largest = 0;
    for (int64_t i = 0; i < n; i += kGroup, out += group_bytes) {
        alignas(64) float rest[kGroup];
        alignas(64) uint8_t encoded[kGroup * sizeof(float)];
        const bool is_whole = n - i >= kGroup;
        const float* group = x + i;
        if (!is_whole) {
            __builtin_memset(rest, 0, sizeof rest);
            __builtin_memcpy(rest, group, (n - i) * sizeof(float));
            group = rest;
        }
        const int32_t here = largest_bits(group);
        largest = largest > here ? largest : here;
        if (largest > highest) break;
        encode(group, is_whole ? out : encoded);
        if (!is_whole) __builtin_memcpy(out, encoded, (n - i) / format.elements * format.bytes);
    }
    return __builtin_bit_cast(float, largest);
}

}  // namespace chaski::CHASKI_ISA
