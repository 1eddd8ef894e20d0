// Segments of sequences that are computed in chunks: the requirements on a batch, checked before anything is
// computed.
#pragma once

#include "gated_delta.h"
#include "plan.h"

namespace chaski {

// Throws std::invalid_argument where segments do not cover `tokens` tokens one after the other, or name cells
// that there are not: `cells` of rows, `states` of states.
void check_segments(const ChunkSegment* segments, std::int64_t count, std::int64_t tokens, std::int64_t cells,
                    std::int64_t states);

}  // namespace chaski
