// Values that are the last elements of keys (latent attention). The keys of a block lie in panels, where
// lanes are tokens. Sums over tokens need lanes along the values, so panels are transposed into scratch
// memory first.
//
// A row in scratch memory starts with up to 15 elements before the value, so that panels are read at
// multiples of a vector.
#pragma once

#include "attention_integers.h"
#include "transpose.h"

namespace chaski::CHASKI_ISA {

// The place of values in rows of scratch memory. After a value, a row has room for a part of a vector.
struct LatentRows {
    std::int64_t begin;  // the first element of a key that is copied
    std::int64_t skipped;
    std::int64_t stride;

    LatentRows(std::int64_t key_size, std::int64_t value_size)
        : begin((key_size - value_size) / kLanes * kLanes),
          skipped(key_size - value_size - begin),
          stride(latent_stride(value_size)) {}
};

// Elements d..d+15 of 16 keys in blocks of 32; d is a multiple of 16.
template <class Format>
CHASKI_INLINE void read_block_lines(const std::byte* panel, std::int64_t d, F32x16 (&lines)[kLanes]) {
    const Format block{{reinterpret_cast<const std::uint8_t*>(panel) + d / 32 * Format::kBytes}};
    const F32x16 scale = block.template scale<0>();
    const auto read_half = [&](auto half) __attribute__((always_inline)) {
        unroll<4>([&](auto i) __attribute__((always_inline)) {
            const U8x64 codes = block.template codes<0, 4 * half.value + i.value>();
            unroll<4>([&](auto b) __attribute__((always_inline)) {
                lines[4 * i.value + b.value] = to_f32(byte<b.value>(codes) + splat(-Format::kOffset)) * scale;
            });
        });
    };
    if (d % 32 == 0)
        read_half(Index<0>{});
    else
        read_half(Index<1>{});
}

// Elements d..d+15 of 16 keys, zeros after the end of the keys.
template <DType T>
CHASKI_INLINE void read_lines(const std::byte* panel, std::int64_t size, std::int64_t d,
                              F32x16 (&lines)[kLanes]) {
    if constexpr (T == DType::Q8_0) {
        read_block_lines<Q8_0>(panel, d, lines);
    } else if constexpr (T == DType::Q4_0) {
        read_block_lines<Q4_0>(panel, d, lines);
    } else if constexpr (T == DType::Q3_0) {
        read_block_lines<Q3_0>(panel, d, lines);
    } else {
        constexpr std::int64_t kLine = kLanes * find_format(T)->bytes;
        for (int i = 0; i < kLanes; ++i) {
            lines[i] = d + i < size ? widen<T>(panel + (d + i) * kLine) : splat(0.0f);
        }
    }
}

// Widens the ends of the keys of a block: [64 tokens][stride].
template <DType T>
void widen_latents(const KeyBlock& keys, std::int64_t size, const LatentRows& place, float* rows) {
    for (int p = 0; p < kBlockPanels; ++p) {
        for (std::int64_t d = place.begin; d < size; d += kLanes) {
            F32x16 lines[kLanes];
            read_lines<T>(keys.panels[p], size, d, lines);
            alignas(64) float tile[kLanes][kLanes];
            for (int i = 0; i < kLanes; ++i) store_f32(tile[i], lines[i]);
            float* out = rows + p * kLanes * place.stride + d - place.begin;
            for (int token = 0; token < kLanes; token += 4) {
                for (int i = 0; i < kLanes; i += 4) {
                    Dwords4 from[4], to[4];
                    for (int j = 0; j < 4; ++j) from[j] = read<Dwords4>(&tile[i + j][token]);
                    transpose_4x4(from, to);
                    for (int j = 0; j < 4; ++j) write(out + (token + j) * place.stride + i, to[j]);
                }
            }
        }
    }
}

// Arranges the ends of the integer keys of a block in pairs of tokens: [32 pairs][stride].
inline void pair_latents(const KeyBlock& keys, std::int64_t size, const LatentRows& place,
                         std::int32_t* pairs) {
    constexpr int kElements = 8;  // read at once: four lines
    const std::int64_t lines = size / 2;
    const auto swapped = [](Words8 a) __attribute__((always_inline)) {
        return __builtin_bit_cast(Dwords4, __builtin_shufflevector(a, a, 0, 2, 1, 3, 4, 6, 5, 7));
    };
    for (int p = 0; p < kBlockPanels; ++p) {
        for (std::int64_t d = place.begin; d < size; d += kElements) {
            std::int32_t* out = pairs + p * kLanes / 2 * place.stride + d - place.begin;
            for (int token = 0; token < kLanes; token += 4) {
                Dwords4 a[4];
                for (int i = 0; i < 4; ++i) {
                    const std::int64_t line = d / 2 + i < lines ? d / 2 + i : lines - 1;
                    a[i] = swapped(read<Words8>(keys.panels[p] + line * 64 + token * 4));
                }
                for (int i = 0; i < 4; i += 2) {
                    std::int32_t* to = out + token / 2 * place.stride + 2 * i;
                    write(to, __builtin_shufflevector(a[i], a[i + 1], 0, 1, 4, 5));
                    write(to + place.stride, __builtin_shufflevector(a[i], a[i + 1], 2, 3, 6, 7));
                }
            }
        }
    }
}

}  // namespace chaski::CHASKI_ISA
