// Shared by the kernels of attention: their argument, a block's part of it, and the joining of chunks.
// Compiled for the types of keys and values (CHASKI_KEYS, CHASKI_VALUES), their sizes, and for this many
// queries at a time (CHASKI_ROWS).
//
// A block of threads has the query heads that share one key/value head, of one token or of some neighbours.
// It goes through the history in chunks of 256 entries, one entry for each thread. With few tokens each chunk
// is a block's, and `attention_join` joins them in order; with many, one block does all that some tokens see.
#pragma once

#include "quantize.h"
#include "storage.h"

namespace chaski::CHASKI_ISA {

constexpr DType kKeys = CHASKI_KEYS, kValues = CHASKI_VALUES;
constexpr int kSize = CHASKI_SIZE, kValueSize = CHASKI_VALUE_SIZE;  // of a head
constexpr int kRows = CHASKI_ROWS;                                  // queries at a time
constexpr int kChunk = 256, kBlock = 64, kBlocks = kChunk / kBlock, kWarps = kChunk / 32;

struct Attention {
    const float* q;  // [token][head][size]
    Count n;
    float* y;  // [token][head][value size]
    Storage keys;
    Storage values;
    const int32_t* cells;
    const int32_t* spans;  // [token][begin, end, first]
    const float* sinks;    // [head], or null
    int64_t heads;
    float scale;
    float cap;
    const int32_t* positions;  // [token], where there are distances
    const float* distances;    // [head][2 · reach + 1], or null
    int64_t reach;
    const int32_t* tasks;  // [chunk of a token][token, number of the chunk], where chunks are apart
    Count num_tasks;
    const int32_t* starts;  // [token]: the first of its tasks
    float* parts;           // [task][head][value size, maximum, total]
    const int32_t* tiles;   // [tile][first token, tokens], where they are not: neighbours of one sequence
    Count num_tiles;
    Quantized quantized;  // of y, by `attention_join`
};

struct Span {
    int32_t begin;
    int32_t end;
    int32_t first;  // position of entry `begin`

    CHASKI_INLINE explicit Span(const int32_t* span) : begin(span[0]), end(span[1]), first(span[2]) {}
    // The entry that the chunk with `begin` starts at.
    CHASKI_INLINE int32_t start() const { return begin - first + first / kChunk * kChunk; }
};

// The queries of a block of threads: `heads` of a group for each token.
struct Rows {
    int32_t token;  // the first
    int tokens;
    int64_t kv_head;
    int64_t head;  // the first
    int heads;

    CHASKI_INLINE int count() const { return tokens * heads; }
    CHASKI_INLINE int32_t token_of(int r) const { return tokens == 1 ? token : token + r / heads; }
    CHASKI_INLINE int64_t head_of(int r) const { return head + (tokens == 1 ? r : r % heads); }
};

CHASKI_INLINE Rows rows_of(const Attention& a, int32_t token, int tokens, int64_t kv_head, int tile) {
    const int each = static_cast<int>(a.heads) / static_cast<int>(a.keys.heads), left = each - tile * kRows;
    return {token, tokens, kv_head, kv_head * each + tile * kRows, left < kRows ? left : kRows};
}

// The entries that some of the rows see, and the one that the first chunk starts at.
struct Sight {
    int32_t begin;
    int32_t end;
    int32_t start;
};

CHASKI_INLINE Sight sight_of(const Attention& a, const Rows& rows) {
    const Span first(a.spans + 3 * rows.token);
    Sight sight{first.begin, first.end, first.start()};
    for (int i = 1; i < rows.tokens; ++i) {
        const Span span(a.spans + 3 * (rows.token + i));
        sight.begin = span.begin < sight.begin ? span.begin : sight.begin;
        sight.end = span.end > sight.end ? span.end : sight.end;
        sight.start = span.start() < sight.start ? span.start() : sight.start;
    }
    return sight;
}

// What the sums of one row are multiplied by in the end.
CHASKI_INLINE float last_factor(const Attention& a, int64_t head, float maximum, float total) {
    float factor = 1.0f;
    if (a.sinks != nullptr) {
        const float sink = a.sinks[head];
        const float level = sink > maximum ? sink : maximum;
        factor = exp(splat(maximum - level)).v;
        total = total * factor + exp(splat(sink - level)).v;
    }
    return factor / total;
}

// The state of a row.
struct Known {
    float maximum = -infinity();
    float total = 0.0f;
    float before = 1.0f;
    float added = 0.0f;

    // Takes the next chunk in, if the row sees any of it: sums are those before times `before` plus `added`.
    CHASKI_INLINE bool join(float next_maximum, float next_total) {
        if (next_maximum == -infinity()) return false;
        const float level = max(splat(maximum), splat(next_maximum)).v;
        before = exp(splat(maximum - level)).v;
        added = exp(splat(next_maximum - level)).v;
        total = total * before + next_total * added;
        maximum = level;
        return true;
    }
};

}  // namespace chaski::CHASKI_ISA
