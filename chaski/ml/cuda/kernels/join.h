// The join of the chunks of a history by the rule in ops.h: in order, each with its own maximum. The last
// thread block of CHASKI_HEADS heads of a token does it; these are CHASKI_BLOCKS blocks for each chunk.
#pragma once

#include "attention.h"

namespace chaski::CHASKI_ISA {

#if CHASKI_SPLIT

constexpr int kHeads = CHASKI_HEADS;  // heads of whole thread blocks and of whole blocks that products read
constexpr int kElements = kHeads * kValueSize;
constexpr int kOwnElements = (kElements + kChunk - 1) / kChunk;  // of a thread
// Chunks whose factors are kept at a time, and whose elements are requested at a time.
constexpr int kJoined = kHeads <= 8 ? 128 : kHeads <= 64 ? 1024 / kHeads : 16;
constexpr int kAhead = kOwnElements < 8 ? 16 / kOwnElements : 2;

// The numbers of a chunk for one head.
struct Chunk {
    float maximum;
    float total;
    float before;  // factor of the sums of previous chunks, or -1 if nothing of this chunk is seen
    float added;   // factor of the sums of this chunk
};
// The shared memory; it takes the place of that of a chunk.
struct Joining {
    alignas(16) float row[kElements];
    Chunk chunks[kJoined][kHeads];
    float maxima[2][kHeads];  // of all chunks before those that are kept, and after these
    int32_t is_last;
};

// Finds the factors of one chunk, which depend on the maxima of previous chunks -> the maximum with it.
CHASKI_INLINE float find_factors(Joining& w, float maximum, int number, int head) {
#pragma unroll 8
    for (int i = 0; i < number; ++i) {
        const float next = w.chunks[i][head].maximum;
        if (next != -infinity()) maximum = max(splat(maximum), splat(next)).v;
    }
    Chunk& own = w.chunks[number][head];
    Known known{maximum};
    const bool is_seen = known.join(own.maximum, own.total);
    own.before = is_seen ? known.before : -1.0f;
    own.added = known.added;
    return known.maximum;
}

// The sums of a thread's elements: every kChunk-th of the heads.
struct OwnSums {
    const float* parts;  // of the first chunk and head
    int64_t stride;      // from chunk to chunk
    float sums[kOwnElements] = {}, totals[kOwnElements] = {}, next[kAhead][kOwnElements];

    CHASKI_INLINE static int number(int k) { return k * kChunk + static_cast<int>(threadIdx.x); }
    CHASKI_INLINE static bool exists(int k) { return kElements % kChunk == 0 || number(k) < kElements; }
    // Requests the elements of chunks from number `from` on.
    CHASKI_INLINE void ask(int from, int count) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            if (from + j >= count) break;
            const float* of_chunk = parts + (from + j) * stride;
#pragma unroll
            for (int k = 0; k < kOwnElements; ++k) {
                const int i = number(k);
                if (exists(k)) next[j][k] = of_chunk[i / kValueSize * (kValueSize + 2) + i % kValueSize];
            }
        }
    }
    // Adds kAhead chunks and requests the next ones. `chunks` has the factors of `known` chunks, whose first
    // is number `begin` of `count`.
    CHASKI_INLINE void add(const Chunk (&chunks)[kJoined][kHeads], int from, int known, int begin,
                           int count) {
        float part[kAhead][kOwnElements];
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            for (int k = 0; k < kOwnElements; ++k) part[j][k] = next[j][k];
        }
        ask(begin + from + kAhead, count);
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            if (from + j >= known) break;
#pragma unroll
            for (int k = 0; k < kOwnElements; ++k) {
                if (!exists(k)) continue;
                const Chunk chunk = chunks[from + j][number(k) / kValueSize];
                if (chunk.before < 0.0f) continue;
                sums[k] = device::fma(part[j][k], chunk.added, sums[k] * chunk.before);
                totals[k] = totals[k] * chunk.before + chunk.total * chunk.added;
            }
        }
    }
};

CHASKI_INLINE void join(const Attention& a, int64_t token, int64_t head, Joining& w) {
    constexpr int kPart = kValueSize + 2;
    const int own = static_cast<int>(threadIdx.x);
    const int first = a.starts[token], count = a.starts[token + 1] - first;
    const int64_t stride = a.heads * kPart;
    const float* parts = a.parts + first * stride + head * kPart;
    OwnSums of{parts, stride};
    of.ask(0, count);
    for (int i = own; i < kHeads; i += kChunk) w.maxima[0][i] = -infinity();
    int turn = 0;
    for (int begin = 0; begin < count; begin += kJoined, turn ^= 1) {
        const int known = count - begin < kJoined ? count - begin : kJoined;
#pragma unroll 1
        for (int j = own; j < known * kHeads; j += kChunk) {
            const float* level = parts + (begin + j / kHeads) * stride + j % kHeads * kPart + kValueSize;
            w.chunks[j / kHeads][j % kHeads].maximum = level[0];
            w.chunks[j / kHeads][j % kHeads].total = level[1];
        }
        barrier();
#pragma unroll 1
        for (int j = own; j < known * kHeads; j += kChunk) {
            const int number = j / kHeads, of_head = j % kHeads;
            const float maximum = find_factors(w, w.maxima[turn][of_head], number, of_head);
            if (number == known - 1) w.maxima[turn ^ 1][of_head] = maximum;
        }
        barrier();
#pragma unroll 1
        for (int from = 0; from < known; from += kAhead) of.add(w.chunks, from, known, begin, count);
        barrier();
    }
    float* y = a.y + (token * a.heads + head) * kValueSize;
#pragma unroll
    for (int k = 0; k < kOwnElements; ++k) {
        if (!of.exists(k)) continue;
        const int i = of.number(k), number = i / kValueSize;
        w.row[i] = of.sums[k] * last_factor(a, head + number, w.maxima[turn][number], of.totals[k]);
        y[i] = w.row[i];
    }
    if (a.quantized.values == nullptr) return;
    barrier();
    for (int base = 0; base < kElements; base += kChunk * kEach) {
        const int i = base + own * kEach;
        float x[kEach] = {};
        if (i < kElements) load_each(w.row + i, x);
        quantize(x, (token * a.heads + head) * kValueSize + i, i < kElements, a.quantized);
    }
}

// Ends a chunk of `rows`: joins all chunks of their heads if no other thread block is missing.
CHASKI_INLINE void join_if_last(const Attention& a, const Rows& rows) {
    auto& w = *reinterpret_cast<Joining*>(device::shared());
    barrier();
    if (threadIdx.x == 0) {
        const int64_t unit = rows.token * (a.heads / kHeads) + rows.head / kHeads;
        const int chunks = a.starts[rows.token + 1] - a.starts[rows.token];
        w.is_last = device::arrive(a.arrivals + unit, static_cast<uint32_t>(chunks * CHASKI_BLOCKS));
    }
    barrier();
    if (w.is_last) join(a, rows.token, rows.head / kHeads * kHeads, w);
}

#endif

}  // namespace chaski::CHASKI_ISA
