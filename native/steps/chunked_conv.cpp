#include "chunked_conv.h"

#include <algorithm>
#include <cstring>

namespace chaski {

ChunkedConvStep::ChunkedConvStep(int tokens_dim, int segments_dim, const float* x, std::vector<float> filter,
                                 const ChunkSegment* segments, KVStorage states, KVStorage rows, float* y)
    : tokens_dim_(tokens_dim),
      segments_dim_(segments_dim),
      x_(x),
      filter_(std::move(filter)),
      segments_(segments),
      states_(states),
      rows_(rows),
      pieces_((states.size + kPiece - 1) / kPiece),
      y_(y) {}

void ChunkedConvStep::prepare(const Sizes& sizes) {
    check_segments(segments_, sizes[segments_dim_], sizes[tokens_dim_], rows_.cells, states_.cells);
}

void ChunkedConvStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const {
    for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t channel = i % pieces_ * kPiece, count = std::min(kPiece, states_.size - channel);
        convolve(segments_[i / pieces_], channel, count);
        keep(segments_[i / pieces_], channel, count);
    }
}

const float* ChunkedConvStep::input(const ChunkSegment& segment, std::int64_t at) const {
    if (at >= segment.position) return x_ + segment.token(at) * states_.size;
    const std::int64_t before = at - segment.since;
    const std::byte* row = before < 0 ? states_.row(before + states_.heads, segment.source)
                                      : rows_.row(at % kDeltaRing, segment.cell);
    return reinterpret_cast<const float*>(row);
}

void ChunkedConvStep::convolve(const ChunkSegment& segment, std::int64_t channel, std::int64_t count) const {
    const std::int64_t size = states_.size, before = states_.heads;
    for (std::int64_t at = segment.position; at < segment.end_position(); ++at) {
        float* y = y_ + segment.token(at) * size + channel;
        for (std::int64_t j = 0; j <= before; ++j) {
            const float* x = input(segment, at - before + j) + channel;
            const float* filter = filter_.data() + j * size + channel;
            if (j == 0) {
                for (std::int64_t c = 0; c < count; ++c) y[c] = filter[c] * x[c];
            } else {
                for (std::int64_t c = 0; c < count; ++c) y[c] += filter[c] * x[c];
            }
        }
    }
}

void ChunkedConvStep::keep(const ChunkSegment& segment, std::int64_t channel, std::int64_t count) const {
    const std::int64_t end = segment.end_position(), before = states_.heads;
    const auto copy = [&](std::byte* row, std::int64_t at) {
        const float* from = input(segment, at) + channel;
        std::memcpy(reinterpret_cast<float*>(row) + channel, from, count * sizeof(float));
    };
    for (std::int64_t j = 0; j < before && segment.target > 0; ++j) {
        copy(states_.row(j, segment.target), segment.last_chunk() - before + j);
    }
    for (std::int64_t at = std::max<std::int64_t>(segment.position, end - kDeltaRing); at < end; ++at) {
        copy(rows_.row(at % kDeltaRing, segment.cell), at);
    }
}

}  // namespace chaski
