// The two matrix products of attention: scores = q k, and y += weights v, for a block of 64 tokens.
//
// Every element of a result is one serial sum: over the head's size (in blocks of 32 where keys are
// quantized) or over the tokens. So it has the same bits for any number of rows and any place of the
// operands: few rows read keys and values directly from storage, many rows read them from scratch memory,
// where they are widened first.
#pragma once

#include "attention_history.h"
#include "blocks.h"
#include "matmul.h"

namespace chaski::CHASKI_ISA {

// Up to this many rows, widening in scratch memory costs more than it saves.
constexpr std::int64_t kDirectRows = 8;

// Prefetches the data one block of 64 tokens after byte `at` of `p` if cells are consecutive, once per line
// of 64 bytes.
CHASKI_INLINE void prefetch_next(const std::byte* p, std::int64_t at, std::int64_t bytes) {
    if (at % 64 == 0) __builtin_prefetch(p + at + bytes, 0, 2);
}

// C[rows][columns] (+)= A[rows][depth] B[depth][columns], with ROWS rows and VECS · 16 columns from n on;
// right(k, n) returns the 16 columns from n on of row k of B.
template <int ROWS, int VECS, class Right>
CHASKI_INLINE void multiply_block(const float* a, std::int64_t lda, const Right& right, float* c,
                                  std::int64_t ldc, std::int64_t n, std::int64_t depth, bool add) {
    F32x16 sums[ROWS][VECS];
    for (int r = 0; r < ROWS; ++r) {
        for (int v = 0; v < VECS; ++v) {
            sums[r][v] = add ? load_f32(c + r * ldc + n + v * kLanes) : splat(0.0f);
        }
    }
    for (std::int64_t k = 0; k < depth; ++k) {
        F32x16 b[VECS];
        for (int v = 0; v < VECS; ++v) b[v] = right(k, n + v * kLanes);
        for (int r = 0; r < ROWS; ++r) {
            const F32x16 left = splat(a[r * lda + k]);
            for (int v = 0; v < VECS; ++v) sums[r][v] = fma(left, b[v], sums[r][v]);
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        for (int v = 0; v < VECS; ++v) store_f32(c + r * ldc + n + v * kLanes, sums[r][v]);
    }
}

// Calls f(first row, constant number of rows) for all rows, in parts that fill the registers.
template <class F>
CHASKI_INLINE void for_row_tiles(std::int64_t rows, const F& f) {
    constexpr int kRows = kRegisters >= 32 ? 6 : 2;
    std::int64_t r = 0;
    for (; r + kRows <= rows; r += kRows) f(r, Index<kRows>{});
    if (kRows > 4 && r + 4 <= rows) {
        f(r, Index<4>{});
        r += 4;
    }
    for (; r + 2 <= rows; r += 2) f(r, Index<2>{});
    if (r < rows) f(r, Index<1>{});
}

template <int VECS, class Right>
void multiply_columns(const float* a, std::int64_t lda, const Right& right, float* c, std::int64_t ldc,
                      std::int64_t n, std::int64_t rows, std::int64_t depth, bool add) {
    for_row_tiles(rows, [&](std::int64_t r, auto count) __attribute__((always_inline)) {
        multiply_block<count.value, VECS>(a + r * lda, lda, right, c + r * ldc, ldc, n, depth, add);
    });
}

// `columns` is a multiple of 16.
template <class Right>
void multiply(const float* a, std::int64_t lda, const Right& right, float* c, std::int64_t ldc,
              std::int64_t rows, std::int64_t columns, std::int64_t depth, bool add) {
    constexpr int kVecs = kRegisters >= 32 ? 4 : 2;
    std::int64_t n = 0;
    for (; n + kVecs * kLanes <= columns; n += kVecs * kLanes) {
        multiply_columns<kVecs>(a, lda, right, c, ldc, n, rows, depth, add);
    }
    for (; n < columns; n += kLanes) multiply_columns<1>(a, lda, right, c, ldc, n, rows, depth, add);
}

// Rows of B, of any type, widened in scratch memory.
struct Widened {
    const float* rows;
    std::int64_t stride;

    CHASKI_INLINE F32x16 operator()(std::int64_t k, std::int64_t n) const {
        return load_f32(rows + k * stride + n);
    }
};

// Scores of ROWS quantized rows from `row` on, and VECS panels from `panel` on: integer products of blocks of
// 32, scaled and added in order along the head.
template <class Format, int ROWS, int VECS>
CHASKI_INLINE void score_quantized(const Activations& q, std::int64_t row, const KeyBlock& keys, int panel,
                                   std::int64_t size, float* scores, std::int64_t ld) {
    constexpr int kBias = Format::kOffset - dot4_bias<Format::kMaxCode>;
    const std::int64_t next = kBlockPanels * panel_bytes(Format::kType, size);
    F32x16 sums[ROWS][VECS];
    for (auto& of_row : sums) {
        for (F32x16& sum : of_row) sum = splat(0.0f);
    }
    for (std::int64_t b = 0; b < size / 32; ++b) {
        I32x16 dots[ROWS][VECS];
        for (int r = 0; r < ROWS; ++r) {
            const std::int16_t* halves = q.sums + (row + r) * (size / 16) + 2 * b;
            for (I32x16& dot : dots[r]) dot = splat(-kBias * (halves[0] + halves[1]));
        }
        const std::int8_t* values = q.values + row * size + 32 * b;
        auto block = [&](int v) __attribute__((always_inline)) {
            return Format{
                {reinterpret_cast<const std::uint8_t*>(keys.panels[panel + v]) + b * Format::kBytes}};
        };
        unroll<8>([&](auto i) __attribute__((always_inline)) {
            U8x64 codes[VECS];
            for (int v = 0; v < VECS; ++v) {
                codes[v] = block(v).template codes<0, i.value>();
                prefetch_next(keys.panels[panel + v] + b * Format::kBytes, 64 * i, next);
            }
            for (int r = 0; r < ROWS; ++r) {
                const auto x = read<std::int32_t>(values + r * size + 4 * i);
                for (int v = 0; v < VECS; ++v) {
                    dots[r][v] = dot4<Format::kMaxCode>(dots[r][v], codes[v], x);
                }
            }
        });
        for (int v = 0; v < VECS; ++v) {
            const F32x16 scale = block(v).template scale<0>();
            for (int r = 0; r < ROWS; ++r) {
                const F32x16 both = scale * splat(q.scales[(row + r) * (size / 32) + b]);
                sums[r][v] = fma(to_f32(dots[r][v]), both, sums[r][v]);
            }
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        for (int v = 0; v < VECS; ++v) {
            store_f32(scores + (row + r) * ld + (panel + v) * kLanes, sums[r][v]);
        }
    }
}

template <class Format>
void score_quantized(const Activations& q, std::int64_t rows, const KeyBlock& keys, std::int64_t size,
                     float* scores, std::int64_t ld) {
    constexpr int kRows = kRegisters >= 32 ? 4 : 2;
    constexpr int kVecs = kRegisters >= 32 ? 2 : 1;
    for (int panel = 0; panel < kBlockPanels; panel += kVecs) {
        std::int64_t r = 0;
        for (; r + kRows <= rows; r += kRows) {
            score_quantized<Format, kRows, kVecs>(q, r, keys, panel, size, scores, ld);
        }
        for (; r < rows; ++r) score_quantized<Format, 1, kVecs>(q, r, keys, panel, size, scores, ld);
    }
}

// scores[row][64 tokens]. `widened` has room for [size][64].
template <DType T>
void score_block(const Activations& q, std::int64_t rows, const KeyBlock& keys, std::int64_t size,
                 float* scores, std::int64_t ld, float* widened) {
    if constexpr (T == DType::Q8_0) {
        score_quantized<Q8_0>(q, rows, keys, size, scores, ld);
    } else if constexpr (T == DType::Q4_0) {
        score_quantized<Q4_0>(q, rows, keys, size, scores, ld);
    } else if constexpr (T == DType::Q3_0) {
        score_quantized<Q3_0>(q, rows, keys, size, scores, ld);
    } else {
        constexpr std::int64_t kLine = kLanes * find_format(T)->bytes;
        const std::int64_t next = kBlockPanels * panel_bytes(T, size);
        auto stored = [&](std::int64_t k, std::int64_t n) __attribute__((always_inline)) {
            const std::byte* panel = keys.panels[n / kLanes];
            prefetch_next(panel, k * kLine, next);
            return widen<T>(panel + k * kLine);
        };
        if (rows <= kDirectRows) {
            return multiply(q.floats, size, stored, scores, ld, rows, kBlock, size, false);
        }
        for (std::int64_t k = 0; k < size; ++k) {
            for (int n = 0; n < kBlock; n += kLanes) store_f32(widened + k * kBlock + n, stored(k, n));
        }
        multiply(q.floats, size, Widened{widened, kBlock}, scores, ld, rows, kBlock, size, false);
    }
}

// sums[row][padded size] += weights[row][count tokens] v. `widened` has room for [64][padded size].
template <DType T, bool WHOLE>
void add_rows(const float* weights, std::int64_t ld, std::int64_t rows, const std::byte* const* values,
              std::int64_t count, std::int64_t size, float* sums, float* widened) {
    const std::int64_t padded = (size + kLanes - 1) / kLanes * kLanes;
    const std::int64_t next = kBlock * row_bytes(T, size);
    auto stored = [&](std::int64_t k, std::int64_t n) __attribute__((always_inline)) {
        prefetch_next(values[k], n * row_bytes(T, 32) / 32, next);
        return load_elements<T, WHOLE>(values[k], n, size);
    };
    if (rows <= kDirectRows) {
        return multiply(weights, ld, stored, sums, padded, rows, padded, count, true);
    }
    for (std::int64_t k = 0; k < count; ++k) {
        for (std::int64_t n = 0; n < padded; n += kLanes) store_f32(widened + k * padded + n, stored(k, n));
    }
    multiply(weights, ld, Widened{widened, padded}, sums, padded, rows, padded, count, true);
}

template <DType T>
void add_values(const float* weights, std::int64_t ld, std::int64_t rows, const std::byte* const* values,
                std::int64_t count, std::int64_t size, float* sums, float* widened) {
    if constexpr (!is_quantized(T)) {
        if (size % kLanes != 0) {
            return add_rows<T, false>(weights, ld, rows, values, count, size, sums, widened);
        }
    }
    add_rows<T, true>(weights, ld, rows, values, count, size, sums, widened);
}

}  // namespace chaski::CHASKI_ISA
