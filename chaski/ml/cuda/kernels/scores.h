// Scores of attention: products of queries and keys by the rule in ops.h, and for integers by the rule in
// integers.h.
#pragma once

#include "attention.h"

namespace chaski::CHASKI_ISA {

constexpr bool kIntegerKeys = kKeys == DType::I16;
constexpr bool kBlockKeys = StorageOf<kKeys>::kInBlocks;

// The queries of a thread block in the form that is multiplied, and the scales of its keys, in shared memory.
struct Queries {
    union {
        float floats[kRows][kSize];
        alignas(16) int16_t integers[kRows][kSize];
        struct {
            alignas(4) int8_t values[kRows][kSize];
            float scales[kRows][kSize / 32 + 1];
        } blocks;
    } queries;
    float query_scales[kRows];
    float key_scales[kChunk];
};

CHASKI_INLINE int32_t product_of_low(int32_t a, int32_t b) {
    return static_cast<int16_t>(a) * static_cast<int16_t>(b);
}
CHASKI_INLINE int32_t product_of_high(int32_t a, int32_t b) { return (a >> 16) * (b >> 16); }

// Quantizes a block of 32 elements of a query by the rule for activations in matmul.h, with a group of 16
// lanes.
CHASKI_INLINE void quantize_query(const Attention& a, const Rows& rows, int r, int block, Queries& w) {
    const bool exists = r < rows.count();
    const float* q = a.q + (rows.token_of(exists ? r : 0) * a.heads + rows.head_of(exists ? r : 0)) * kSize;
    float x[2];
    I32x16 bits = splat(0);
    for (int i = 0; i < 2; ++i) {
        x[i] = exists ? q[32 * block + 16 * i + lane()] * a.scale : 0.0f;
        bits = max(bits, magnitude_bits({x[i]}));
    }
    const float amax = device::as_float(reduce_max(bits));
    const bool usable = amax >= 1e-36f && amax < infinity();
    const float factor = usable ? 127.0f / amax : 0.0f;
    for (int i = 0; i < 2; ++i) {
        const int32_t value = usable ? device::round(x[i] * factor) : 0;
        w.queries.blocks.values[r][32 * block + 16 * i + lane()] = static_cast<int8_t>(value);
    }
    if (lane() == 0) w.queries.blocks.scales[r][block] = amax < 1e-36f ? 0.0f : amax / 127.0f;
}

CHASKI_INLINE void load_queries(const Attention& a, const Rows& rows, Queries& w) {
    if constexpr (kIntegerKeys) {
        for (int r = group(); r < kRows; r += num_groups()) {
            const bool exists = r < rows.count();
            const float* q =
                a.q + (rows.token_of(exists ? r : 0) * a.heads + rows.head_of(exists ? r : 0)) * kSize;
            float scale;
            const auto x = [&](int64_t i) { return exists ? q[i] * a.scale : 0.0f; };
            const float factor = factor_of(kSize, false, x, &scale);
            for (int i = lane(); i < kSize; i += kLanes) {
                const int32_t value = factor == 0.0f ? 0 : device::round(x(i) * factor);
                w.queries.integers[r][i] = static_cast<int16_t>(value);
            }
            if (lane() == 0) w.query_scales[r] = scale;
        }
    } else if constexpr (kBlockKeys) {
        constexpr int kBlocksOfRow = (kSize + 31) / 32;
        for (int item = group(); item < kRows * kBlocksOfRow; item += num_groups()) {
            quantize_query(a, rows, item / kBlocksOfRow, item % kBlocksOfRow, w);
        }
    } else {
        for (int i = static_cast<int>(threadIdx.x); i < kRows * kSize; i += kChunk) {
            const int r = i / kSize;
            const float* q = a.q + (rows.token_of(r) * a.heads + rows.head_of(r)) * kSize;
            w.queries.floats[r][i % kSize] = r < rows.count() ? q[i % kSize] * a.scale : 0.0f;
        }
    }
    barrier();
}

// Codes 4 i to 4 i + 3 of a block of keys, whose units of four bytes are `lines`.
CHASKI_INLINE uint32_t codes_of(const uint32_t* lines, int i) {
    if constexpr (kKeys == DType::Q8_0) return lines[i * kLanes];
    if constexpr (kKeys == DType::Q4_0) return lines[i % 4 * kLanes] >> i / 4 * 4 & 0x0f0f0f0fu;
    const auto bits = [&](int n) { return lines[n * kLanes] >> i & 0x01010101u; };
    return bits(0) | bits(1) << 1 | bits(2) << 2;
}

// Computes scores[row] for the key in a cell.
CHASKI_INLINE void score(const Attention& a, int64_t kv_head, int64_t cell, const Queries& w,
                         float (&scores)[kRows]) {
    const StorageOf<kKeys> keys{a.keys};
    if constexpr (kIntegerKeys) {
        const auto* pairs = reinterpret_cast<const int32_t*>(keys.lane_of(kv_head, cell));
        const float scale = w.key_scales[threadIdx.x];
        int32_t sums[kRows] = {};
        constexpr int kAhead = kSize % 32 == 0 ? 16 : kSize % 16 == 0 ? 8 : 1;  // pairs
#pragma unroll 1
        for (int k = 0; k < kSize / 2; k += kAhead) {
            int32_t key[kAhead];
            for (int j = 0; j < kAhead; ++j) key[j] = pairs[(k + j) * kLanes];
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                for (int j = 0; j < kAhead; ++j) {
                    const int32_t q = reinterpret_cast<const int32_t*>(w.queries.integers[r])[k + j];
                    sums[r] += product_of_low(key[j], q) + product_of_high(key[j], q);
                }
            }
        }
        for (int r = 0; r < kRows; ++r) {
            scores[r] = static_cast<float>(sums[r]) * (scale * w.query_scales[r]);
        }
    } else if constexpr (kBlockKeys) {
        constexpr int kOffset = kKeys == DType::Q8_0 ? 128 : kKeys == DType::Q4_0 ? 8 : 4;
        for (float& s : scores) s = 0.0f;
        const auto* lines = reinterpret_cast<const uint32_t*>(keys.lane_of(kv_head, cell));
        for (int block = 0; block < kSize / 32; ++block, lines += kLanes * keys.kBlockBytes / 4) {
            const float scale = keys.block_scale(kv_head, cell, block);
            int32_t sums[kRows] = {};
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const uint32_t codes = codes_of(lines, i);
                for (int r = 0; r < kRows; ++r) {
                    const int32_t q =
                        reinterpret_cast<const int32_t*>(w.queries.blocks.values[r])[8 * block + i];
                    sums[r] = device::dot4(sums[r], codes, q) - kOffset * device::dot4(0, 0x01010101u, q);
                }
            }
            for (int r = 0; r < kRows; ++r) {
                const float both = scale * w.queries.blocks.scales[r][block];
                scores[r] = device::fma(static_cast<float>(sums[r]), both, scores[r]);
            }
        }
    } else {
        for (float& s : scores) s = 0.0f;
        for (int k = 0; k < kSize; ++k) {
            const float key = load_element<kKeys>(keys.element(kv_head, cell, k));
            for (int r = 0; r < kRows; ++r) scores[r] = device::fma(w.queries.floats[r][k], key, scores[r]);
        }
    }
}

}  // namespace chaski::CHASKI_ISA
