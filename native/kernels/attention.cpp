// Attention over scattered cells. Compiled once per instruction set.
//
// A tile is up to 64 query rows (tokens × the heads of a group) of one sequence. Its history is taken in
// chunks of 64 positions: keys are brought into [size][64], so that lanes are tokens, and then both products,
// scores = q k and y += p v, are small matrix products in which every element is one serial sum.

#include <cstring>
#include <limits>

#include "attention_kernel.h"
#include "storage.h"

namespace chaski::CHASKI_ISA {
namespace {

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
    auto block = [&](auto count) {
        multiply_block<count.value, VECS>(a + r * lda, lda, b, ldb, c + r * ldc, ldc, depth, add);
        r += count.value;
    };
    while (r + kRows <= rows) block(Index<kRows>{});
    if (kRows > 4 && r + 4 <= rows) block(Index<4>{});
    while (r + 2 <= rows) block(Index<2>{});
    if (r < rows) block(Index<1>{});
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
        values = take(kChunk * value_size);
        weights = take(rows * kChunk);
        sums = take(rows * value_size);
        maxima = take(rows);
        totals = take(rows);
    }
};

// Keys of 16 tokens as 16 columns from `column` on: rows of storage become lanes.
template <KVType T>
void load_keys(const KVStorage& storage, const std::byte* const (&rows)[kLanes], std::int64_t key_size,
               float* column) {
    for (std::int64_t d = 0; d < key_size; d += kLanes) {
        F32x16 block[kLanes];
        for (int i = 0; i < kLanes; ++i) {
            block[i] = rows[i] == nullptr ? splat(0.0f) : load_lanes<T>(rows[i], d, storage.size - d);
        }
        transpose(block);
        for (int i = 0; i < kLanes; ++i) store_f32(column + (d + i) * kChunk, block[i]);
    }
}

// One token's value, completed with zeros.
template <KVType T>
void load_value(const KVStorage& storage, const std::byte* row, std::int64_t value_size, float* y) {
    for (std::int64_t d = 0; d < value_size; d += kLanes) {
        store_f32(y + d, row == nullptr ? splat(0.0f) : load_lanes<T>(row, d, storage.size - d));
    }
}

// Fills keys and values of a chunk: entry i is history cell begin + i for i in [from, to), else zero.
void load_chunk(const Attention& job, std::int64_t kv_head, std::int64_t begin, std::int64_t from,
                std::int64_t to, const Workspace& w) {
    for (std::int64_t first = 0; first < kChunk; first += kLanes) {
        const std::byte* keys[kLanes];
        const std::byte* values[kLanes];
        for (std::int64_t i = 0; i < kLanes; ++i) {
            bool is_there = first + i >= from && first + i < to;
            std::int64_t cell = is_there ? job.cells[begin + first + i] : 0;
            keys[i] = is_there ? job.keys.row(kv_head, cell) : nullptr;
            values[i] = is_there ? job.values.row(kv_head, cell) : nullptr;
        }
        with_type(job.keys.type,
                  [&](auto type) { load_keys<type.value>(job.keys, keys, w.key_size, w.keys + first); });
        with_type(job.values.type, [&](auto type) {
            for (std::int64_t i = 0; i < kLanes; ++i) {
                load_value<type.value>(job.values, values[i], w.value_size,
                                       w.values + (first + i) * w.value_size);
            }
        });
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

}  // namespace

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

}  // namespace chaski::CHASKI_ISA
