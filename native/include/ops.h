// All operations between the matrix products: plain functions on pointers and sizes, one table per
// instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "panel.h"

namespace chaski {

// Vectors are read from the middle of a panel's lines, so this many bytes after the end are readable.
constexpr std::int64_t kStorageSlack = 64;

// One layer's keys or values, head by head, so that a head's history is one stream. A row is one head of one
// cell: `size` elements in the format of files, plain numbers or blocks of 32 (see kFormats).
//
//   values  [head][cell]: rows; attention adds up rows, with lanes along the head's size
//   keys    [head][16 cells]: the rows of 16 cells as a panel (see panel.h), so that lanes are tokens and a
//           score is one serial sum
//
// Values may be the last elements of the keys (latent attention). Then both are the same storage, in panels.
//
// The scales of a head's rows or panels of type I16 follow them, a float for each cell (integers.h).
struct KVStorage {
    std::byte* data;
    std::int64_t cells;
    std::int64_t heads;
    std::int64_t size;
    DType type;
    bool in_panels;

    [[gnu::always_inline]] std::int64_t row_area() const {
        return in_panels ? num_panels(cells) * panel_bytes(type, size) : cells * row_bytes(type, size);
    }
    [[gnu::always_inline]] std::int64_t head_bytes() const {
        if (type != DType::I16) return row_area();
        return (row_area() + 63) / 64 * 64 + num_panels(cells) * 64;
    }
    [[gnu::always_inline]] float* scales(std::int64_t head) const {
        return reinterpret_cast<float*>(data + (head + 1) * head_bytes() - num_panels(cells) * 64);
    }
    [[gnu::always_inline]] std::byte* row(std::int64_t head, std::int64_t cell) const {
        return data + head * head_bytes() + cell * row_bytes(type, size);
    }
    [[gnu::always_inline]] std::byte* panel(std::int64_t head, std::int64_t cell) const {
        return data + head * head_bytes() + cell / kLanes * panel_bytes(type, size);
    }
};

// The scratch that writing, reading and rotating cells need: one head as floats, its size rounded up to a
// multiple of 16, and the rows of a panel, each of at most that size.
constexpr std::int64_t cell_scratch_floats(const KVStorage& storage) {
    return (kLanes + 1) * ((storage.size + kLanes - 1) / kLanes * kLanes);
}

// The cells that a token sees: cells[begin, end) of the batch's history; cells[begin] holds position `first`.
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

// The fused form cuts history at multiples of this position, so that the cuts are the same for every batch
// and thread count.
constexpr std::int64_t kAttentionChunk = 256;
// Maximum number of query rows (tokens times heads that share keys) of a tile, unless one token has more.
constexpr std::int64_t kAttentionRows = 128;
constexpr std::int64_t kPlainAttentionRows = 8;

// Attention computes, for each query row:
//
//   scores = scale · q k + distances[position of k - position of q, at most reach away]
//   scores bounded to cap · tanh(scores / cap) if there is a cap
//   y = sum of exp(score - maximum) v / (sum of exp(score - maximum) + exp(sink - maximum))
//
// The plain form computes exactly this. The fused form computes it chunk by chunk, each with its own maximum,
// and joins the chunks in order. So several threads may compute chunks, and no row of scores is longer than a
// chunk.
struct Attention {
    const float* q;  // [token][head][size]
    float* y;        // [token][head][value size]
    KVStorage keys;
    KVStorage values;
    std::int64_t value_size;  // of a head
    const std::int32_t* cells;
    const Span* spans;   // [token]
    const float* sinks;  // [head], or null
    std::int64_t heads;
    float scale;
    float cap;  // 0 for none
    bool is_plain;
    std::int64_t length;            // of a chunk: kAttentionChunk; plain form: plain_attention_length
    const std::int32_t* positions;  // [token], with distances only
    const float* distances;         // [head][2 · reach + 1], or null
    std::int64_t reach;

    [[gnu::always_inline]] std::int64_t group() const { return heads / keys.heads; }
    [[gnu::always_inline]] bool values_in_keys() const { return values.in_panels; }
};

// An indexer (DeepSeek sparse attention) scores the keys that a token sees, and attention reads the keys with
// the highest scores:
//
//   score of a key = sum over heads, ascending, of weights[head] · max(scale · q[head] k, 0)
//
// Each product is a score of attention, and the sum starts at 0 with one fma for each head. So a score
// depends on the token and the key alone.
struct Indexer {
    const float* q;        // [token][head][size]
    const float* weights;  // [token][head], or null for ones
    KVStorage keys;        // one head
    const std::int32_t* cells;
    const Span* spans;  // [token]
    std::int64_t heads;
    float scale;

    // Returns the products of one token with the keys in `span` of a list of cells, as scores of attention.
    [[gnu::always_inline]] Attention of(std::int64_t token, const std::int32_t* list,
                                        const Span* span) const {
        Attention job{};
        job.q = q + token * heads * keys.size;
        job.keys = job.values = keys;
        job.value_size = keys.size;
        job.cells = list;
        job.spans = span;
        job.heads = heads;
        job.scale = scale;
        job.length = kAttentionChunk;
        return job;
    }
};

constexpr int kMaxElementwiseOperands = 3;

// y = f(x...) element by element, with the same parameters for all elements. y may be one of the operands.
struct Elementwise {
    const char* name;
    int operands;
    int parameters;
    void (*apply)(const float* const* x, const float* parameters, std::int64_t count, float* y);
};

struct ChunkSegment;
struct GatedDelta;        // gated_delta.h
struct SelectiveScan;     // selective_scan.h
struct GeneralizedDelta;  // generalized_delta.h
struct Segment;           // segment.h
struct Lora;              // lora.h
struct LoraRow;

struct Ops {
    // Every operation of elementwise.cpp; a row without a name ends the list.
    const Elementwise* elementwise;
    // y = x / sqrt(mean(x²) + eps) · weight for one row of `size` elements; null means a weight of 1.
    void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t size, float* y);
    // y = (x - mean(x)) / sqrt(variance(x) + eps) · weight + bias for one row; null means a bias of 0.
    void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, std::int64_t size,
                       float* y);
    // Parts of other steps: y = x · factor, y = a + b, y = fma(x, factor, y).
    void (*scale)(const float* x, float factor, std::int64_t count, float* y);
    void (*add)(const float* a, const float* b, std::int64_t count, float* y);
    void (*add_scaled)(float* y, const float* x, float factor, std::int64_t count);
    // y = exp(x - max x) / (sum of these exponentials), summed in the order of row sums; and 1 / (1 +
    // exp(-x)). y may be x.
    void (*softmax)(const float* x, std::int64_t count, float* y);
    void (*sigmoid)(const float* x, std::int64_t count, float* y);
    // y = exp(x - highest) for x up to `highest`, and the sum of y: 16 lanes of doubles, over a fixed tree.
    void (*exponentials)(const float* x, float highest, std::int64_t count, float* y);
    double (*exponential_sum)(const float* x, float highest, std::int64_t count);
    // The largest of every 16th element: maxima[l] of x[l], x[l + 16], ..., or -inf without elements. If any
    // element is NaN, all maxima are NaN.
    void (*lane_maxima)(const float* x, std::int64_t count, float* maxima);
    // Rotates `pairs` pairs of each head of one token, and copies the rest. Pairs are (2j, 2j+1) or, for
    // neox, (j, j+pairs).
    void (*rope)(const float* x, const float* cos, const float* sin, std::int64_t heads, std::int64_t size,
                 std::int64_t pairs, bool neox, float* y);
    // The rotation of hadamard.h of `count` elements, a multiple of `block`. y may be x.
    void (*hadamard)(const float* x, std::int64_t count, std::int64_t block, float* y);
    // Writes the heads of `count` tokens, [token][head][size], into one cell per token, and rounds to the
    // storage's type. It is fastest for consecutive cells. `scratch` of this and the next three functions has
    // cell_scratch_floats.
    void (*store)(const float* x, const KVStorage& storage, const std::int32_t* cells, std::int64_t count,
                  float* scratch);
    // Reads a cell: [head][size].
    void (*load)(const KVStorage& storage, std::int64_t cell, float* y, float* scratch);
    // Copies cells of one storage bit by bit to another storage, or to other cells of the same one. Both have
    // the same heads, size, type and form; fastest if both runs of cells are consecutive and start at the
    // same lane.
    void (*copy)(const KVStorage& from, const std::int32_t* sources, const KVStorage& to,
                 const std::int32_t* targets, std::int64_t count, float* scratch);
    // Rotates the pairs of each head stored in a cell, as `rope` does. With a `block` above 1, heads are
    // stored after `hadamard`: its inverse precedes, and it follows again.
    void (*rotate)(const KVStorage& storage, std::int64_t cell, const float* cos, const float* sin,
                   std::int64_t pairs, bool neox, std::int64_t block, float* scratch);
    // Scratch bytes of attention for tiles of `rows` query rows.
    std::size_t (*attention_scratch)(const Attention& job, std::int64_t rows);
    // Attention of the tokens of `tile` for the query heads of one key/value head.
    void (*attention)(const Attention& job, Tile tile, std::int64_t kv_head, std::byte* scratch);
    // The same in two steps: the first computes one chunk of the tile's history into part_floats(...) floats,
    // and the second joins all chunks in order.
    void (*attention_chunk)(const Attention& job, Tile tile, std::int64_t kv_head, std::int64_t chunk,
                            float* part, std::byte* scratch);
    void (*attention_join)(const Attention& job, Tile tile, std::int64_t kv_head, std::int64_t chunks,
                           const float* parts, std::byte* scratch);
    // The scores of one chunk of the keys of one token, which `heads` describes; scores[0] is that of its
    // first key. `weights` [head] may be null. Smaller products than `least` count as it. Scratch is that of
    // attention for as many rows as heads.
    void (*index_scores)(const Attention& heads, const float* weights, float least, std::int64_t chunk,
                         float* scores, std::byte* scratch);
    // The gated delta rule for the blocks [begin, end) of columns of a key head's heads, along a segment.
    // Rows of keys and decays of its first chunk are stored before this call, and those of later chunks after
    // all calls.
    std::size_t (*gated_delta_scratch)(const GatedDelta& job);
    void (*gated_delta)(const GatedDelta& job, const ChunkSegment& segment, std::int64_t key_head,
                        std::int64_t begin, std::int64_t end, std::byte* scratch);
    // The selective scan of the channels [begin, end) along a segment, of which `begin` is a multiple of 16.
    void (*selective_scan)(const SelectiveScan& job, const Segment& segment, std::int64_t begin,
                           std::int64_t end);
    // The generalized delta rule of the columns [begin, end) of a head along a segment. Both are multiples of
    // 16.
    void (*generalized_delta)(const GeneralizedDelta& job, const Segment& segment, std::int64_t head,
                              std::int64_t begin, std::int64_t end);
    // The rule of lora.h for n rows of one adapter: t = A x · scale, and y += B t in the matrix rows of the
    // panels [panel_begin, panel_end). `next` is the A, or the part of B, that is read afterwards.
    void (*lora_down)(const Lora& pair, const LoraRow* rows, std::int64_t n, const std::byte* next);
    void (*lora_up)(const Lora& pair, std::int64_t panel_begin, std::int64_t panel_end, const LoraRow* rows,
                    std::int64_t n, const std::byte* next);
};

// The length of a single chunk that contains a whole history and starts at a multiple of 64.
[[maybe_unused]] static constexpr std::int64_t plain_attention_length(std::int64_t history) {
    return (history + 63) / 64 * 64 + 64;
}

// Number of floats for the result of one chunk with `rows` query rows: sums of values, maxima, totals.
[[maybe_unused]] static constexpr std::int64_t part_floats(std::int64_t rows, std::int64_t value_size) {
    return rows * ((value_size + 15) / 16 * 16) + 2 * ((rows + 15) / 16 * 16);
}

}  // namespace chaski
