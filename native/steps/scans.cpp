#include "selective_scan.h"

#include <algorithm>

#include "short_conv.h"

namespace chaski {

void SelectiveScanStep::prepare(const Sizes& sizes) {
    check_segments(segments_, sizes[segments_dim_], sizes[tokens_dim_], job_.states.cells);
}

void SelectiveScanStep::run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte*) const {
    for (std::int64_t item = begin; item < end; ++item) {
        std::int64_t index = item / pieces_;
        Segment segment = segments_[index];
        if (segment.begin != segment.first) continue;  // computed with the one before it
        const std::int64_t channel = item % pieces_ * kPiece;
        const std::int64_t stop = std::min(channel + kPiece, job_.channels());
        ops_.selective_scan(job_, segment, channel, stop);
        while (++index < sizes[segments_dim_] && segments_[index].first == segment.first) {
            const std::int32_t state = segment.target;
            segment = segments_[index];
            segment.source = state;
            ops_.selective_scan(job_, segment, channel, stop);
        }
    }
}

}  // namespace chaski
