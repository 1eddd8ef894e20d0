#include "delta_rule.h"

#include <algorithm>

namespace chaski {

namespace {

// The first position after the chunk in which a segment begins.
std::int64_t behind_first(const ChunkSegment& segment) { return segment.since + kDeltaChunk; }

}  // namespace

void DeltaRowsStep::prepare(const Sizes& sizes) {
    has_rows_ = is_before_;
    for (std::int64_t i = 0; i < sizes[segments_dim_]; ++i) {
        has_rows_ |= segments_[i].end_position() > behind_first(segments_[i]);
    }
}

void DeltaRowsStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const {
    for (std::int64_t item = begin; item < end; ++item) {
        const ChunkSegment& segment = segments_[item / job_.key_heads()];
        const std::int64_t stop = segment.end_position(), behind = behind_first(segment);
        std::int64_t from = segment.position, to = std::min(behind, stop);
        if (!is_before_) {
            from = std::max(behind, segment.last_chunk() - kDeltaChunk);
            to = stop;
        }
        store_delta_rows(job_, segment, item % job_.key_heads(), from, to);
    }
}

void GatedDeltaStep::prepare(const Sizes& sizes) {
    const std::int64_t count = sizes[segments_dim_];
    check_segments(segments_, count, sizes[tokens_dim_], job_.keys.cells, job_.states.cells);
    const std::int64_t whole = std::max<std::int64_t>(count * job_.key_heads(), 1);
    parts_ = std::min((2 * threads_ + whole - 1) / whole, job_.blocks());
}

void GatedDeltaStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const {
    const std::int64_t blocks = job_.blocks();
    for (std::int64_t item = begin; item < end; ++item) {
        const std::int64_t part = item % parts_, whole = item / parts_;
        ops_.gated_delta(job_, segments_[whole / job_.key_heads()], whole % job_.key_heads(),
                         blocks * part / parts_, blocks * (part + 1) / parts_, scratch);
    }
}

}  // namespace chaski
