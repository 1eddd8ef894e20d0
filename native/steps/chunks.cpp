#include "chunks.h"

#include <stdexcept>
#include <string>

namespace chaski {

void check_segments(const ChunkSegment* segments, std::int64_t count, std::int64_t tokens, std::int64_t cells,
                    std::int64_t states) {
    std::int64_t last = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        const ChunkSegment& s = segments[i];
        const bool is_part = s.begin == last && s.end > s.begin && s.end <= tokens && s.position >= 0;
        const bool is_cell = s.cell >= 0 && s.cell < cells && s.source >= 0 && s.source < states &&
                             s.target >= 0 && s.target < states;
        const bool is_open = s.since >= 0 && s.since % kDeltaChunk == 0 && s.since <= s.position &&
                             s.position - s.since <= kDeltaChunk;
        const bool passes_boundary = is_part && s.last_chunk() > s.since;
        if (!is_part || !is_cell || !is_open || passes_boundary != (s.target > 0) ||
            (passes_boundary && s.source == s.target)) {
            throw std::invalid_argument("segments[" + std::to_string(i) + "] = (" + std::to_string(s.begin) +
                                        ", " + std::to_string(s.end) + ", " + std::to_string(s.position) +
                                        ", " + std::to_string(s.cell) + ", " + std::to_string(s.source) +
                                        ", " + std::to_string(s.target) + ", " + std::to_string(s.since) +
                                        ") does not fit");
        }
        last = s.end;
    }
    if (last != tokens) {
        throw std::invalid_argument("segments end at " + std::to_string(last) + ", tokens at " +
                                    std::to_string(tokens));
    }
}

}  // namespace chaski
