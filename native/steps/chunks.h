// Checks the segments of a batch for sequences that are computed in chunks.
#pragma once

#include "gated_delta.h"
#include "plan.h"

namespace chaski {

// Throws std::invalid_argument if segments do not cover `tokens` tokens one after the other, or if they name
// cells outside the `cells` cells of rows or `states` cells of states.
void check_segments(const ChunkSegment* segments, std::int64_t count, std::int64_t tokens, std::int64_t cells,
                    std::int64_t states);

}  // namespace chaski
