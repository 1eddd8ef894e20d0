// The tokens of sequences in a batch, and the states that sequences keep.
#pragma once

#include "storage.h"

namespace chaski::CHASKI_ISA {

using States = StorageOf<DType::F32>;

CHASKI_INLINE float* row_of(const Storage& s, int64_t head, int64_t cell) {
    return reinterpret_cast<float*>(States{s}.row(head, cell));
}

// The segment of segment.h: the tokens [begin, end), whose sequence begins in the batch at `first`.
struct Segment {
    int32_t begin;
    int32_t end;
    int32_t first;
    int32_t source;
    int32_t target;
};

constexpr int kChunk = 32, kRing = 2 * kChunk;  // kDeltaChunk, kDeltaRing

// The segment of gated_delta.h: the tokens [begin, end) from `position` on.
struct ChunkSegment {
    int32_t begin;
    int32_t end;
    int32_t position;
    int32_t cell;
    int32_t source;
    int32_t target;
    int32_t since;

    CHASKI_INLINE int end_position() const { return position + (end - begin); }
    CHASKI_INLINE int last_chunk() const { return (end_position() - 1) / kChunk * kChunk; }
    CHASKI_INLINE int64_t token(int at) const { return begin + (at - position); }
};

// The segment of a token.
template <class T>
CHASKI_INLINE const T& segment_of(const T* segments, int64_t token) {
    while (segments->end <= token) ++segments;
    return *segments;
}

}  // namespace chaski::CHASKI_ISA
