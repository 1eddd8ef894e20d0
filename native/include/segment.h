// The tokens of a batch that belong to one sequence, for layers whose states follow each token.
#pragma once

#include <cstdint>

namespace chaski {

// The tokens [begin, end) of a sequence, whose tokens of this batch begin at `first`. The state before
// `first` is read from one row of the storage, and the state after these tokens is written to another.
struct Segment {
    std::int32_t begin;
    std::int32_t end;
    std::int32_t first;
    std::int32_t source;
    std::int32_t target;
};

}  // namespace chaski
