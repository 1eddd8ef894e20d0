// The two products of attention in integers, by the rule in integers.h.
#pragma once

#include "attention_history.h"
#include "attention_products.h"
#include "integers.h"

namespace chaski::CHASKI_ISA {

// Queries, or the weights of a block, as integers [row][stride], with a scale for each row.
struct QuantizedRows {
    std::int16_t* values;
    float* scales;
    float* factors;  // of weights: their factors
    std::int64_t stride;

    CHASKI_INLINE std::int32_t pair(std::int64_t row, std::int64_t k) const {
        return read<std::int32_t>(values + row * stride + 2 * k);
    }
};

// finish(r, v, sum over pairs from..to-1 of left(r, k) · right(k, v)), two products for each pair.
template <int ROWS, int VECS, class Right, class Finish>
CHASKI_INLINE void multiply_pairs(const QuantizedRows& left, std::int64_t row, std::int64_t from,
                                  std::int64_t to, const Right& right, const Finish& finish) {
    I32x16 sums[ROWS][VECS];
#pragma GCC unroll 32
    for (int i = 0; i < ROWS * VECS; ++i) sums[i / VECS][i % VECS] = splat(0);
    for (std::int64_t k = from; k < to; ++k) {
        I32x16 b[VECS];
#pragma GCC unroll 16
        for (int v = 0; v < VECS; ++v) b[v] = right(k, v);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) {
            const std::int32_t a = left.pair(row + r, k);
#pragma GCC unroll 16
            for (int v = 0; v < VECS; ++v) sums[r][v] = dot2(sums[r][v], b[v], a);
        }
    }
#pragma GCC unroll 32
    for (int i = 0; i < ROWS * VECS; ++i) finish(i / VECS, i % VECS, sums[i / VECS][i % VECS]);
}

constexpr int kPairVecs = kRegisters >= 32 ? 4 : 2;

// scores[row][64 tokens].
inline void score_integers(const QuantizedRows& q, std::int64_t rows, const KeyBlock& keys, std::int64_t size,
                           float* scores, std::int64_t ld) {
    const std::int64_t next = kBlockPanels * panel_bytes(DType::I16, size);
    for (int panel = 0; panel < kBlockPanels; panel += kPairVecs) {
        auto line = [&](std::int64_t k, int v) __attribute__((always_inline)) {
            const std::byte* p = keys.panels[panel + v] + k * 64;
            prefetch_next(p, 0, next);
            return load_i32(reinterpret_cast<const std::int32_t*>(p));
        };
        for_row_tiles(rows, [&](std::int64_t row, auto count) __attribute__((always_inline)) {
            multiply_pairs<count.value, kPairVecs>(
                q, row, 0, size / 2, line, [&](int r, int v, I32x16 sum) __attribute__((always_inline)) {
                    const F32x16 scale = load_f32(keys.scales[panel + v]) * splat(q.scales[row + r]);
                    store_f32(scores + (row + r) * ld + (panel + v) * kLanes, to_f32(sum) * scale);
                });
        });
    }
}

// The entries from..to-1 of a block of values, and the scales of all 64 entries, 0 for missing ones.
struct ScaledBlock {
    std::int64_t from;
    std::int64_t to;
    bool is_run;  // whether all entries are consecutive cells
    const float* scales;
    alignas(64) float gathered[kBlock];

    ScaledBlock(const KVStorage& stored, std::int64_t head, const std::int32_t* cells, std::int64_t from,
                std::int64_t to)
        : from(from), to(to), is_run(to - from == kBlock && are_consecutive(cells, kBlock, cells[0])) {
        const float* all = stored.scales(head);
        if (is_run) {
            scales = all + cells[0];
            for (int i = 0; i < kBlock; i += kLanes) __builtin_prefetch(scales + kBlock + i);
            return;
        }
        scales = gathered;
        for (std::int64_t i = 0; i < kBlock; ++i) gathered[i] = i >= from && i < to ? all[cells[i]] : 0.0f;
    }

    // The bounds of the vectors of 16 entries in use.
    std::int64_t first() const { return from / kLanes * kLanes; }
    std::int64_t last() const { return (to + kLanes - 1) / kLanes * kLanes; }
    // Calls f(first entry) for each of these vectors.
    template <class F>
    CHASKI_INLINE void for_vectors(const F& f) const {
        if (to - from == kBlock) {
            return unroll<kBlock / kLanes>([&](auto v) __attribute__((always_inline)) { f(v * kLanes); });
        }
        for (std::int64_t i = first(); i < last(); i += kLanes) f(i);
    }
};

// One block of values in rows.
struct ValueBlock : ScaledBlock {
    const std::byte* rows[kBlock];  // of missing entries: any row

    ValueBlock(const KVStorage& stored, std::int64_t head, const std::int32_t* cells, std::int64_t from,
               std::int64_t to)
        : ScaledBlock(stored, head, cells, from, to) {
        const std::byte* first_row = stored.row(head, 0);
        const std::int64_t bytes = row_bytes(DType::I16, stored.size);
        if (is_run) {
            const std::byte* row = first_row + cells[0] * bytes;
            for (const std::byte*& each : rows) {
                each = row;
                row += bytes;
            }
            return;
        }
        for (std::int64_t i = 0; i < kBlock; ++i) {
            rows[i] = first_row + cells[i >= from && i < to ? i : from] * bytes;
        }
    }

    // Elements n..n+15 of entries 2k and 2k+1, in pairs.
    CHASKI_INLINE I32x16 pairs(std::int64_t k, std::int64_t n) const {
        const std::int64_t offset = n * static_cast<std::int64_t>(sizeof(std::int16_t));
        return load_u16(rows[2 * k] + offset) | shift_left<16>(load_u16(rows[2 * k + 1] + offset));
    }
};

// The weights of a block, [row][stride] from `weights` on, times the scales of its values, as integers. All
// rows take one step before any row takes the next, so that no row waits for its own maximum and division.
inline void quantize_weights(const float* weights, std::int64_t stride, std::int64_t rows,
                             const ScaledBlock& block, float sum_limit, const QuantizedRows& quantized) {
    auto product = [&](std::int64_t row, std::int64_t i) __attribute__((always_inline)) {
        return load_f32(weights + row * stride + i) * load_f32(block.scales + i);
    };
    for (std::int64_t r = 0; r < rows; ++r) {
        I32x16 bits = splat(0);
        F32x16 sum = splat(0.0f);
        block.for_vectors([&](std::int64_t i) __attribute__((always_inline)) {
            bits = max(bits, magnitude_bits(product(r, i)));
            sum = sum + product(r, i);
        });
        quantized.scales[r] = __builtin_bit_cast(float, reduce_max(bits));
        quantized.factors[r] = sum_lanes(sum);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
        const float largest = quantized.scales[r];
        const float by_size = kWeightLimit / largest, by_sum = sum_limit / quantized.factors[r];
        const float factor = by_size < by_sum ? by_size : by_sum;
        quantized.factors[r] = is_usable(largest) ? factor : 0.0f;
        quantized.scales[r] = is_usable(largest) ? 1.0f / factor : unusable_scale(largest);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
        const F32x16 factor = splat(quantized.factors[r]);
        std::int16_t* to = quantized.values + r * quantized.stride;
        block.for_vectors([&](std::int64_t i) __attribute__((always_inline)) {
            store_i16(to + i, round_to_i32(product(r, i) * factor));
        });
    }
}

template <int VECS, class Right>
CHASKI_INLINE void add_columns(const QuantizedRows& weights, std::int64_t rows, const ScaledBlock& block,
                               const Right& right, float* sums, std::int64_t padded, std::int64_t n) {
    for_row_tiles(rows, [&](std::int64_t row, auto count) __attribute__((always_inline)) {
        auto column = [&](std::int64_t k, int v)
                          __attribute__((always_inline)) { return right(k, n + v * kLanes); };
        multiply_pairs<count.value, VECS>(
            weights, row, block.first() / 2, block.last() / 2, column,
            [&](int r, int v, I32x16 sum) __attribute__((always_inline)) {
                float* y = sums + (row + r) * padded + n + v * kLanes;
                store_f32(y, fma(to_f32(sum), splat(weights.scales[row + r]), load_f32(y)));
            });
    });
}

// sums[row][padded] += weights · values of a block, of which right(k, n) returns 16 columns of a pair.
template <class Right>
void add_all_columns(const QuantizedRows& weights, std::int64_t rows, const ScaledBlock& block,
                     const Right& right, float* sums, std::int64_t padded) {
    std::int64_t n = 0;
    for (; n + kPairVecs * kLanes <= padded; n += kPairVecs * kLanes) {
        add_columns<kPairVecs>(weights, rows, block, right, sums, padded, n);
    }
    for (; n < padded; n += kLanes) add_columns<1>(weights, rows, block, right, sums, padded, n);
}

// sums[row][padded size] += weights · values of a block. `widened` has room for 32 pairs of [padded size].
inline void add_integers(const QuantizedRows& weights, std::int64_t rows, const ValueBlock& block,
                         std::int64_t size, float* sums, float* widened) {
    const std::int64_t padded = (size + kLanes - 1) / kLanes * kLanes;
    auto* lines = reinterpret_cast<std::int32_t*>(widened);
    const std::int64_t next = kBlock * row_bytes(DType::I16, size);
    auto stored = [&](std::int64_t k, std::int64_t n) __attribute__((always_inline)) {
        prefetch_next(block.rows[2 * k], 2 * n, next);
        prefetch_next(block.rows[2 * k + 1], 2 * n, next);
        return block.pairs(k, n);
    };
    auto in_scratch = [&](std::int64_t k, std::int64_t n)
                          __attribute__((always_inline)) { return load_i32(lines + k * padded + n); };
    if (rows <= kDirectRows) return add_all_columns(weights, rows, block, stored, sums, padded);
    for (std::int64_t k = block.first() / 2; k < block.last() / 2; ++k) {
        for (std::int64_t n = 0; n < padded; n += kLanes) store_i32(lines + k * padded + n, stored(k, n));
    }
    add_all_columns(weights, rows, block, in_scratch, sums, padded);
}

}  // namespace chaski::CHASKI_ISA
