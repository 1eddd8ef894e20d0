// The common parts of the attention kernels: their argument, a thread block's part of it, and the joining of
// chunks. Compiled for the types of keys and values (CHASKI_KEYS, CHASKI_VALUES), their sizes, and a number
// of queries at a time (CHASKI_ROWS).
//
// A thread block computes the query heads that share one key/value head, for one token or some neighbours. It
// reads the history in chunks of 256 entries, one entry for each thread. With few tokens each chunk has its
// own thread block, and the last of these to end joins the chunks in order (join.h). With many tokens, one
// block computes all chunks.
#pragma once

#include "quantize.h"
#include "storage.h"

namespace chaski::CHASKI_ISA {

constexpr DType kKeys = CHASKI_KEYS, kValues = CHASKI_VALUES;
constexpr int kSize = CHASKI_SIZE, kValueSize = CHASKI_VALUE_SIZE;  // of a head
constexpr int kRows = CHASKI_ROWS;                                  // queries at a time
// Whether values are the last elements of keys (latent attention), and the first of these.
constexpr bool kValuesInKeys = CHASKI_VALUES_IN_KEYS;
constexpr int kFirstOfValue = kValuesInKeys ? kSize - kValueSize : 0;
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
    const int32_t* positions;  // [token], with distances only
    const float* distances;    // [head][2 · reach + 1], or null
    int64_t reach;
    const int32_t* tasks;  // [chunk of a token][token, number of the chunk], if chunks have separate blocks
    Count num_tasks;
    const int32_t* starts;  // [token]: the first of its tasks
    float* parts;           // [task][head][value size, maximum, total]
    const int32_t* tiles;   // [tile][first token, tokens], otherwise: neighbours of one sequence
    Count num_tiles;
    Quantized quantized;  // of y, if chunks have separate blocks
    uint32_t* arrivals;   // [token][CHASKI_HEADS heads]: the blocks that have ended; zeros before and after
};

struct Span {
    int32_t begin;
    int32_t end;
    int32_t first;  // position of entry `begin`

    CHASKI_INLINE explicit Span(const int32_t* span) : begin(span[0]), end(span[1]), first(span[2]) {}
    // The entry at which the chunk with `begin` starts.
    CHASKI_INLINE int32_t start() const { return begin - first + first / kChunk * kChunk; }
};

// The queries of a thread block: `heads` heads of a group for each token.
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

// The entries that at least one row sees, and the entry at which the first chunk starts.
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

// The factor that multiplies the sums of one row at the end.
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

    // Adds the next chunk, if the row sees any of it: previous sums are multiplied by `before`, new ones by
    // `added`.
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
