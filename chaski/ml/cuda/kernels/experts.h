// The rows that a thread block multiplies, and the matrix: all rows by one matrix or, if a program is
// compiled for experts (CHASKI_EXPERTS), the rows of one group by the matrix of its expert.
#pragma once

#include "kernel.h"

namespace chaski::CHASKI_ISA {

// The group of native/steps/moe.h: four parallel lists.
struct Group {
    int32_t pair;
    int32_t row;
    int32_t expert;
    int32_t end;
};

#if defined(CHASKI_EXPERTS)

constexpr int kExpertsBytes = 32;

// The places of the experts' data. Each matrix has `bytes` bytes and follows that of the previous expert. A
// row of activations belongs to a pair or, if `gathers` is set, to the pair's token.
struct Experts {
    const Group* groups;
    int64_t count;  // of pairs of a token
    int64_t gathers;
    int64_t bytes;
};

// The rows [begin, end) of the result: the grid's z is their group, and `part`, usually the grid's y, their
// part of the group.
struct Share {
    const Experts& experts;
    int64_t begin = 0, end = 0, expert = 0;

    CHASKI_INLINE Share(const Experts& all, Count n, int tokens, unsigned part = blockIdx.y) : experts(all) {
        const int64_t group = blockIdx.z;
        if (group >= *n * all.count) return;
        end = all.groups[group].end;
        begin = (group == 0 ? 0 : all.groups[group - 1].end) + static_cast<int64_t>(part) * tokens;
        expert = all.groups[group].expert;
    }
    CHASKI_INLINE bool is_empty() const { return begin >= end; }
    // The start of the matrix, and the start of its bias of `rows` elements.
    CHASKI_INLINE int64_t weights() const { return expert * experts.bytes; }
    CHASKI_INLINE int64_t bias(int64_t rows) const { return expert * rows; }
    // The activations of row number i of this share; after its last row, those of the last row.
    CHASKI_INLINE int64_t source(int64_t i) const {
        const int64_t row = begin + i < end ? begin + i : end - 1;
        return experts.gathers ? experts.groups[row].pair / experts.count : row;
    }
};

#else

constexpr int kExpertsBytes = 0;

struct Experts {};

struct Share {
    int64_t begin, end;

    CHASKI_INLINE Share(const Experts&, Count n, int tokens, unsigned part = blockIdx.y)
        : begin(static_cast<int64_t>(part) * tokens), end(*n) {}
    CHASKI_INLINE bool is_empty() const { return begin >= end; }
    CHASKI_INLINE int64_t weights() const { return 0; }
    CHASKI_INLINE int64_t bias(int64_t) const { return 0; }
    CHASKI_INLINE int64_t source(int64_t i) const { return begin + i < end ? begin + i : end - 1; }
};

#endif

}  // namespace chaski::CHASKI_ISA
