// Norm, activation, rotation, storage and attention. Compiled once per instruction set.
//
// All loops go over 16 lanes, whatever the width of a register, and sums are taken per lane and then over a
// fixed tree. So a row has the same bits in every batch, and nearly always for every instruction set.

#include "ops.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "panel.h"
#include "vector_math.h"

namespace chaski::CHASKI_ISA {
namespace {

std::int64_t whole_lanes(std::int64_t count) { return count / kLanes * kLanes; }

// f(a, b) for `count` elements; the tail goes through the same 16-lane code.
template <class F>
void map2(const float* a, const float* b, std::int64_t count, float* y, F f) {
    std::int64_t whole = whole_lanes(count);
    for (std::int64_t i = 0; i < whole; i += kLanes) {
        store_f32(y + i, f(load_f32(a + i), load_f32(b + i)));
    }
    if (int rest = static_cast<int>(count - whole); rest > 0) {
        store_f32(y + whole, f(load_f32(a + whole, rest), load_f32(b + whole, rest)), rest);
    }
}

void rms_norm(const float* x, const float* weight, float eps, std::int64_t size, float* y) {
    std::int64_t whole = whole_lanes(size);
    F32x16 squares = splat(0.0f);
    for (std::int64_t i = 0; i < whole; i += kLanes) {
        F32x16 v = load_f32(x + i);
        squares = fma(v, v, squares);
    }
    if (whole < size) {
        F32x16 v = load_f32(x + whole, static_cast<int>(size - whole));
        squares = fma(v, v, squares);
    }
    float scale = 1.0f / std::sqrt(sum_lanes(squares) / static_cast<float>(size) + eps);
    F32x16 scales = splat(scale);
    map2(x, weight, size, y, [&](F32x16 v, F32x16 w) { return v * scales * w; });
}

void swiglu(const float* gate, const float* up, std::int64_t count, float* y) {
    F32x16 one = splat(1.0f);
    map2(gate, up, count, y, [&](F32x16 g, F32x16 u) { return g / (one + exp(-g)) * u; });
}

void add(const float* a, const float* b, std::int64_t count, float* y) {
    map2(a, b, count, y, [](F32x16 u, F32x16 v) { return u + v; });
}

void rope(const float* x, const float* cos, const float* sin, std::int64_t heads, std::int64_t size,
          std::int64_t pairs, float* y) {
    for (std::int64_t head = 0; head < heads; ++head, x += size, y += size) {
        for (std::int64_t j = 0; j < pairs; ++j) {
            float even = x[2 * j];
            float odd = x[2 * j + 1];
            y[2 * j] = even * cos[j] - odd * sin[j];
            y[2 * j + 1] = even * sin[j] + odd * cos[j];
        }
        std::memmove(y + 2 * pairs, x + 2 * pairs, (size - 2 * pairs) * sizeof(float));
    }
}

// ---- key/value storage ----

// Calls f(index, count) for 16 elements at a time, fewer at the end.
template <class F>
void by_lanes(std::int64_t size, F f) {
    for (std::int64_t i = 0; i < size; i += kLanes)
        f(i, static_cast<int>(size - i < kLanes ? size - i : kLanes));
}

template <void (*Narrow)(std::uint16_t*, F32x16)>
void narrow(const float* x, std::int64_t size, std::byte* row) {
    by_lanes(size, [&](std::int64_t i, int count) {
        std::uint16_t halves[kLanes];
        Narrow(halves, load_f32(x + i, count));
        std::memcpy(row + 2 * i, halves, 2 * count);
    });
}

template <F32x16 (*Widen)(const void*)>
void widen(const std::byte* row, std::int64_t size, float* y) {
    by_lanes(size, [&](std::int64_t i, int count) {
        std::uint16_t halves[kLanes] = {};
        std::memcpy(halves, row + 2 * i, 2 * count);
        store_f32(y + i, Widen(halves));
    });
}

void store(const float* x, const KVStorage& storage, std::int64_t cell) {
    for (std::int64_t head = 0; head < storage.heads; ++head, x += storage.size) {
        std::byte* row = storage.row(head, cell);
        switch (storage.type) {
            case KVType::F32:
                std::memcpy(row, x, storage.size * sizeof(float));
                break;
            case KVType::F16:
                narrow<store_f16>(x, storage.size, row);
                break;
            case KVType::BF16:
                narrow<store_bf16>(x, storage.size, row);
                break;
        }
    }
}

// One stored row as float32, completed with zeros to a multiple of 16.
void load_row(const KVStorage& storage, std::int64_t head, std::int64_t cell, float* y) {
    const std::byte* row = storage.row(head, cell);
    switch (storage.type) {
        case KVType::F32:
            by_lanes(storage.size, [&](std::int64_t i, int count) {
                store_f32(y + i, load_f32(reinterpret_cast<const float*>(row) + i, count));
            });
            break;
        case KVType::F16:
            widen<load_f16>(row, storage.size, y);
            break;
        case KVType::BF16:
            widen<load_bf16>(row, storage.size, y);
            break;
    }
}

// ---- attention ----
//
// A tile is up to 64 query rows (tokens × the heads of a group) of one sequence. Its history is taken in
// chunks of 64 positions: keys are brought into [size][64], so that lanes are tokens, and then both products,
// scores = q k and y += p v, are small matrix products in which every element is one serial sum.

constexpr std::int64_t kChunk = kAttentionChunk;

// C[rows][columns] = (add ? C : 0) + A[rows][depth] B[depth][columns], with ROWS rows and VECS·16 columns.
template <int ROWS, int VECS>
void multiply_block(const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c,
                    std::int64_t ldc, std::int64_t depth, bool add) {
    F32x16 sums[ROWS][VECS];
    for (int r = 0; r < ROWS; ++r) {
        for (int v = 0; v < VECS; ++v) {
            sums[r][v] = add ? load_f32(c + r * ldc + v * kLanes) : splat(0.0f);
        }
    }
    for (std::int64_t k = 0; k < depth; ++k) {
        F32x16 right[VECS];
        for (int v = 0; v < VECS; ++v) right[v] = load_f32(b + k * ldb + v * kLanes);
        for (int r = 0; r < ROWS; ++r) {
            F32x16 left = splat(a[r * lda + k]);
            for (int v = 0; v < VECS; ++v) sums[r][v] = fma(left, right[v], sums[r][v]);
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        for (int v = 0; v < VECS; ++v) store_f32(c + r * ldc + v * kLanes, sums[r][v]);
    }
}

template <int VECS>
void multiply_columns(const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c,
                      std::int64_t ldc, std::int64_t rows, std::int64_t depth, bool add) {
    constexpr int kRows = kRegisters >= 32 ? 6 : 2;
    std::int64_t r = 0;
    for (; r + kRows <= rows; r += kRows) {
        multiply_block<kRows, VECS>(a + r * lda, lda, b, ldb, c + r * ldc, ldc, depth, add);
    }
    for (; r < rows; ++r) multiply_block<1, VECS>(a + r * lda, lda, b, ldb, c + r * ldc, ldc, depth, add);
}

// `columns` is a multiple of 16.
void multiply(const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c, std::int64_t ldc,
              std::int64_t rows, std::int64_t columns, std::int64_t depth, bool add) {
    constexpr int kVecs = kRegisters >= 32 ? 4 : 2;
    std::int64_t n = 0;
    for (; n + kVecs * kLanes <= columns; n += kVecs * kLanes) {
        multiply_columns<kVecs>(a, lda, b + n, ldb, c + n, ldc, rows, depth, add);
    }
    for (; n < columns; n += kLanes) multiply_columns<1>(a, lda, b + n, ldb, c + n, ldc, rows, depth, add);
}

// Where the pieces of the scratch memory lie; all row lengths are multiples of 16.
struct Workspace {
    std::int64_t key_size;    // padded
    std::int64_t value_size;  // padded
    float* q;                 // [row][key size], scaled
    float* keys;              // [key size][chunk]
    float* row;               // [max(key size, value size)] one stored row
    float* values;            // [chunk][value size]
    float* weights;           // [row][chunk]: scores, then exp(score - maximum)
    float* sums;              // [row][value size]: the weighted values so far
    float* maxima;            // [row]
    float* totals;            // [row]: sum of weights so far

    Workspace(std::byte* scratch, std::int64_t rows, std::int64_t key, std::int64_t value)
        : key_size((key + kLanes - 1) / kLanes * kLanes), value_size((value + kLanes - 1) / kLanes * kLanes) {
        float* next = reinterpret_cast<float*>(scratch);
        auto take = [&next](std::int64_t count) {
            float* taken = next;
            next += (count + kLanes - 1) / kLanes * kLanes;
            return taken;
        };
        q = take(rows * key_size);
        keys = take(key_size * kChunk);
        row = take(key_size > value_size ? key_size : value_size);
        values = take(kChunk * value_size);
        weights = take(rows * kChunk);
        sums = take(rows * value_size);
        maxima = take(rows);
        totals = take(rows);
    }
};

// Fills keys and values of a chunk: entry i of the chunk is in history cell begin + i, for i in [from, to).
void load_chunk(const Attention& job, std::int64_t kv_head, std::int64_t begin, std::int64_t from,
                std::int64_t to, const Workspace& w) {
    if (from > 0 || to < kChunk) {
        std::memset(w.keys, 0, w.key_size * kChunk * sizeof(float));
        std::memset(w.values, 0, kChunk * w.value_size * sizeof(float));
    }
    for (std::int64_t i = from; i < to; ++i) {
        std::int64_t cell = job.cells[begin + i];
        load_row(job.keys, kv_head, cell, w.row);
        for (std::int64_t d = 0; d < w.key_size; ++d) w.keys[d * kChunk + i] = w.row[d];
        load_row(job.values, kv_head, cell, w.values + i * w.value_size);
    }
}

// Turns a row of scores into weights relative to the maximum so far; entries outside [from, to) count
// nothing.
void soften(float* scores, std::int64_t from, std::int64_t to, float* maximum, float* total, float* sums,
            std::int64_t value_size) {
    const float hidden = -std::numeric_limits<float>::infinity();
    for (std::int64_t i = 0; i < from; ++i) scores[i] = hidden;
    for (std::int64_t i = to; i < kChunk; ++i) scores[i] = hidden;
    F32x16 highest = load_f32(scores);
    for (std::int64_t i = kLanes; i < kChunk; i += kLanes) highest = max(highest, load_f32(scores + i));
    float now = max_lanes(highest);
    if (now < *maximum) now = *maximum;
    F32x16 level = splat(now);
    F32x16 sum = splat(0.0f);
    for (std::int64_t i = 0; i < kChunk; i += kLanes) {
        F32x16 weight = exp(load_f32(scores + i) - level);
        store_f32(scores + i, weight);
        sum = sum + weight;
    }
    // The first chunk of a row has nothing to rescale: exp(-inf - now) is 0 and so are the sums.
    F32x16 before = exp(splat(*maximum) - level);
    float rescale[kLanes];
    store_f32(rescale, before);
    *total = *total * rescale[0] + sum_lanes(sum);
    for (std::int64_t d = 0; d < value_size; d += kLanes) store_f32(sums + d, load_f32(sums + d) * before);
    *maximum = now;
}

void attention(const Attention& job, Tile tile, std::int64_t kv_head, std::byte* scratch) {
    std::int64_t group = job.heads / job.keys.heads;
    std::int64_t rows = tile.count * group;
    Workspace w(scratch, rows, job.keys.size, job.values.size);
    const Span* spans = job.spans + tile.begin;

    std::int64_t begin = spans[0].begin;
    std::int64_t end = spans[0].end;
    for (std::int64_t token = 0; token < tile.count; ++token) {
        if (spans[token].begin < begin) begin = spans[token].begin;
        if (spans[token].end > end) end = spans[token].end;
        for (std::int64_t head = 0; head < group; ++head) {
            const float* q =
                job.q + ((tile.begin + token) * job.heads + kv_head * group + head) * job.keys.size;
            float* to = w.q + (token * group + head) * w.key_size;
            for (std::int64_t d = 0; d < job.keys.size; ++d) to[d] = q[d] * job.scale;
            for (std::int64_t d = job.keys.size; d < w.key_size; ++d) to[d] = 0.0f;
        }
    }
    for (std::int64_t r = 0; r < rows; ++r) {
        w.maxima[r] = -std::numeric_limits<float>::infinity();
        w.totals[r] = 0.0f;
    }
    std::memset(w.sums, 0, rows * w.value_size * sizeof(float));

    // `list` is where the history would hold position 0, so chunks start at list + multiples of the length.
    std::int64_t list = spans[0].begin - spans[0].first;
    for (std::int64_t start = list + (begin - list) / kChunk * kChunk; start < end; start += kChunk) {
        std::int64_t to = end - start < kChunk ? end - start : kChunk;
        load_chunk(job, kv_head, start, start < begin ? begin - start : 0, to, w);
        multiply(w.q, w.key_size, w.keys, kChunk, w.weights, kChunk, rows, kChunk, job.keys.size, false);
        std::int64_t first_row = rows;
        std::int64_t last_row = 0;
        for (std::int64_t r = 0; r < rows; ++r) {
            const Span& span = spans[r / group];
            std::int64_t row_from = span.begin > start ? span.begin - start : 0;
            std::int64_t row_to = span.end - start < to ? span.end - start : to;
            if (row_from >= row_to) {
                std::memset(w.weights + r * kChunk, 0, kChunk * sizeof(float));
                continue;
            }
            if (first_row == rows) first_row = r;
            last_row = r + 1;
            soften(w.weights + r * kChunk, row_from, row_to, &w.maxima[r], &w.totals[r],
                   w.sums + r * w.value_size, w.value_size);
        }
        if (first_row < last_row) {
            multiply(w.weights + first_row * kChunk, kChunk, w.values, w.value_size,
                     w.sums + first_row * w.value_size, w.value_size, last_row - first_row, w.value_size, to,
                     true);
        }
    }

    for (std::int64_t r = 0; r < rows; ++r) {
        std::int64_t token = tile.begin + r / group;
        float* y = job.y + (token * job.heads + kv_head * group + r % group) * job.values.size;
        float inverse = 1.0f / w.totals[r];
        for (std::int64_t d = 0; d < job.values.size; ++d) y[d] = w.sums[r * w.value_size + d] * inverse;
    }
}

}  // namespace

extern const Ops kOps;
const Ops kOps = {rms_norm, swiglu, add, rope, store, attention};

}  // namespace chaski::CHASKI_ISA
