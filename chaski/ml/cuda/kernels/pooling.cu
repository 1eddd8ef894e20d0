// Means of groups of tokens, weighted by a softmax of each channel, by the rule in native/steps/pooling.h.
#include "segments.h"

namespace chaski::CHASKI_ISA {

struct Pooling {
    const float* values;  // [token][input][channel]; two inputs if groups overlap, else one
    const float* scores;  // the same
    const ChunkSegment* segments;
    Count num_segments;
    const float* bias;  // [place in a group][input][channel]
    int64_t ratio;      // tokens of a group
    int64_t stretch;    // tokens of a thread: whole groups and chunks
    Storage states;     // [3][channel]
    Storage rows;       // [ring][2 · inputs · channels]: values, then scores
    float* y;           // [token][channel]

    CHASKI_INLINE int64_t channels() const { return states.size; }
    CHASKI_INLINE int64_t width() const { return rows.size / 2; }
    CHASKI_INLINE bool overlaps() const { return width() != channels(); }
};

// The pool of one channel.
struct Pool {
    float maximum = 0.0f;
    float sum = 0.0f;
    float total = 0.0f;
    bool is_empty = true;

    CHASKI_INLINE void load(const Storage& states, int64_t cell, int64_t channel) {
        maximum = row_of(states, 0, cell)[channel];
        sum = row_of(states, 1, cell)[channel];
        total = row_of(states, 2, cell)[channel];
        is_empty = false;
    }
    CHASKI_INLINE void store(const Storage& states, int64_t cell, int64_t channel) const {
        row_of(states, 0, cell)[channel] = maximum;
        row_of(states, 1, cell)[channel] = sum;
        row_of(states, 2, cell)[channel] = total;
    }
    CHASKI_INLINE void add(float value, float score) {
        if (is_empty) {
            maximum = score;
            sum = 1.0f;
            total = value;
            is_empty = false;
            return;
        }
        const float highest = maximum < score ? score : maximum;
        const float kept = exp(F32x16{maximum - highest}).v, added = exp(F32x16{score - highest}).v;
        sum = sum * kept + added;
        total = total * kept + added * value;
        maximum = highest;
    }
};

CHASKI_INLINE float result_of(const Pool& before, const Pool& own) {
    if (before.is_empty) return own.total / own.sum;
    const float highest = before.maximum < own.maximum ? own.maximum : before.maximum;
    const float f = exp(F32x16{before.maximum - highest}).v, g = exp(F32x16{own.maximum - highest}).v;
    return (before.total * f + own.total * g) / (before.sum * f + own.sum * g);
}

CHASKI_INLINE void add(const Pooling& a, const ChunkSegment& segment, int at, int64_t column, Pool& pool) {
    const float bias = a.bias[at % a.ratio * a.width() + column];
    if (at >= segment.position) {
        const int64_t from = segment.token(at) * a.width() + column;
        pool.add(a.values[from], a.scores[from] + bias);
    } else {
        const float* row = row_of(a.rows, at % kRing, segment.cell) + column;
        pool.add(row[0], row[a.width()] + bias);
    }
}

// There is a thread for each channel, and thread blocks for segments and for stretches of their tokens. If
// groups overlap, the first group of a stretch needs the group before, unless that is in a state.
CHASKI_KERNEL(pooling, Pooling) {
    const int64_t channel = thread();
    if (static_cast<int64_t>(blockIdx.y) >= *a.num_segments || channel >= a.channels()) return;
    const ChunkSegment segment = a.segments[blockIdx.y];
    const auto stretch = static_cast<int>(a.stretch), ratio = static_cast<int>(a.ratio);
    const int start = (segment.since / stretch + static_cast<int>(blockIdx.z)) * stretch;
    const int end = start + stretch < segment.end_position() ? start + stretch : segment.end_position();
    const bool overlaps = a.overlaps(), is_first = blockIdx.z == 0;
    const int from = is_first ? segment.since : overlaps ? start - ratio : start;
    Pool own, next, before;
    if (is_first && from > 0 && (overlaps || from % ratio != 0)) {
        (overlaps ? before : own).load(a.states, segment.source, channel);
    }
    for (int at = from; at < end; ++at) {
        if (at % ratio == 0) {
            if (overlaps && !next.is_empty) before = next;
            own.is_empty = next.is_empty = true;
        }
        const bool is_own = is_first || at >= start;
        if (is_own && segment.target > 0 && at == segment.last_chunk()) {
            (overlaps ? before : own).store(a.states, segment.target, channel);
        }
        add(a, segment, at, overlaps ? a.channels() + channel : channel, own);
        if (overlaps) add(a, segment, at, channel, next);
        if (is_own && at >= segment.position) {
            a.y[segment.token(at) * a.channels() + channel] = result_of(before, own);
        }
    }
}

// Keeps the newest inputs of each segment. There is a thread for each element of a token's inputs, and thread
// blocks for segments.
CHASKI_KERNEL(keep_pooled, Pooling) {
    const int64_t column = thread();
    if (static_cast<int64_t>(blockIdx.y) >= *a.num_segments || column >= a.width()) return;
    const ChunkSegment segment = a.segments[blockIdx.y];
    const int end = segment.end_position();
    const int begin = end - kRing > segment.position ? end - kRing : segment.position;
    for (int at = begin; at < end; ++at) {
        const int64_t from = segment.token(at) * a.width() + column;
        float* row = row_of(a.rows, at % kRing, segment.cell) + column;
        row[0] = a.values[from];
        row[a.width()] = a.scores[from];
    }
}

}  // namespace chaski::CHASKI_ISA
