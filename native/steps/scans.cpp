#include "scans.h"

#include <algorithm>

#include "short_conv.h"

namespace chaski {

void ScanStep::prepare(const Sizes& sizes) {
    check_segments(segments_, sizes[segments_dim_], sizes[tokens_dim_], cells_);
}

void ScanStep::run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte*) const {
    for (std::int64_t item = begin; item < end; ++item) {
        std::int64_t index = item / pieces_;
        Segment segment = segments_[index];
        if (segment.begin != segment.first) continue;  // computed with the one before it
        scan(segment, item % pieces_);
        while (++index < sizes[segments_dim_] && segments_[index].first == segment.first) {
            const std::int32_t state = segment.target;
            segment = segments_[index];
            segment.source = state;
            scan(segment, item % pieces_);
        }
    }
}

void SelectiveScanStep::scan(const Segment& segment, std::int64_t piece) const {
    const std::int64_t channel = piece * kPiece;
    ops_.selective_scan(job_, segment, channel, std::min(channel + kPiece, job_.channels()));
}

void GeneralizedDeltaStep::scan(const Segment& segment, std::int64_t piece) const {
    const std::int64_t pieces = pieces_of_head(job_), column = piece % pieces * kPiece;
    ops_.generalized_delta(job_, segment, piece / pieces, column, std::min(column + kPiece, job_.columns()));
}

}  // namespace chaski
