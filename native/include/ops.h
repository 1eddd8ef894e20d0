// Everything between the matrix products: plain functions on pointers and sizes, one table an instruction
// set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace chaski {

// Element types of key/value storage.
enum class KVType : std::uint8_t { F32, F16, BF16 };

constexpr std::size_t kv_bytes(KVType type) { return type == KVType::F32 ? 4 : 2; }

// One layer's keys or values: [head][cell][size], so that a head's history is one stream.
struct KVStorage {
    std::byte* data;
    std::int64_t cells;
    std::int64_t heads;
    std::int64_t size;
    KVType type;

    std::byte* row(std::int64_t head, std::int64_t cell) const {
        return data + (head * cells + cell) * size * static_cast<std::int64_t>(kv_bytes(type));
    }
};

// What a token sees: cells[begin, end) of the batch's history, cells[begin] holding position `first`.
struct Span {
    std::int32_t begin;
    std::int32_t end;
    std::int32_t first;
};

// Consecutive tokens of one sequence whose attention is computed together.
struct Tile {
    std::int32_t begin;
    std::int32_t count;
};

// History is cut where a position is a multiple of this: the same cuts for every batch and thread count.
constexpr std::int64_t kAttentionChunk = 64;
// Query rows (tokens times heads that share keys) of a tile, at most, unless one token has more.
constexpr std::int64_t kAttentionRows = 64;

struct Attention {
    const float* q;  // [token][head][size]
    float* y;        // [token][head][value size]
    KVStorage keys;
    KVStorage values;
    const std::int32_t* cells;
    const Span* spans;  // [token]
    std::int64_t heads;
    float scale;
};

struct Ops {
    // y = x / sqrt(mean(x²) + eps) · weight for one row of `size` elements.
    void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t size, float* y);
    // y = silu(gate) · up.
    void (*swiglu)(const float* gate, const float* up, std::int64_t count, float* y);
    void (*add)(const float* a, const float* b, std::int64_t count, float* y);
    // Rotates the pairs (2j, 2j+1), j < pairs, of each head of one token; copies the rest.
    void (*rope)(const float* x, const float* cos, const float* sin, std::int64_t heads, std::int64_t size,
                 std::int64_t pairs, float* y);
    // Writes one token's heads [head][size] into a cell, rounding to the storage's type.
    void (*store)(const float* x, const KVStorage& storage, std::int64_t cell);
    // Rotates the pairs of each head stored in a cell, as `rope` does. `head_row` has room for one head, its
    // size rounded up to a multiple of 16.
    void (*rotate)(const KVStorage& storage, std::int64_t cell, const float* cos, const float* sin,
                   std::int64_t pairs, float* head_row);
    // Attention of the tokens of `tile` for the query heads of one key/value head.
    void (*attention)(const Attention& job, Tile tile, std::int64_t kv_head, std::byte* scratch);
};

// Scratch bytes of `attention` for tiles of `rows` query rows.
std::size_t attention_scratch(std::int64_t rows, std::int64_t key_size, std::int64_t value_size);

}  // namespace chaski
