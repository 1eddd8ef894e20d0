#include "short_conv.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace chaski {

ShortConvStep::ShortConvStep(int tokens_dim, int segments_dim, const float* x, std::vector<float> filter,
                             const Segment* segments, KVStorage storage, float* y)
    : tokens_dim_(tokens_dim),
      segments_dim_(segments_dim),
      x_(x),
      filter_(std::move(filter)),
      segments_(segments),
      storage_(storage),
      pieces_((storage.size + kPiece - 1) / kPiece),
      y_(y) {}

void check_segments(const Segment* segments, std::int64_t count, std::int64_t tokens, std::int64_t cells) {
    std::int64_t last = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        const Segment& s = segments[i];
        bool is_row = s.source >= 0 && s.target > 0 && s.source < cells && s.target < cells;
        bool is_first = s.first == s.begin || (i > 0 && s.first == segments[i - 1].first);
        if (s.begin != last || s.end <= s.begin || s.end > tokens || !is_row || !is_first) {
            throw std::invalid_argument("segments[" + std::to_string(i) + "] = (" + std::to_string(s.begin) +
                                        ", " + std::to_string(s.end) + ", " + std::to_string(s.first) + ", " +
                                        std::to_string(s.source) + ", " + std::to_string(s.target) +
                                        ") does not fit");
        }
        last = s.end;
    }
    if (last != tokens) {
        throw std::invalid_argument("segments end at " + std::to_string(last) + ", tokens at " +
                                    std::to_string(tokens));
    }
}

void ShortConvStep::prepare(const Sizes& sizes) {
    check_segments(segments_, sizes[segments_dim_], sizes[tokens_dim_], storage_.cells);
}

void ShortConvStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const {
    for (std::int64_t i = begin; i < end; ++i) {
        std::int64_t channel = i % pieces_ * kPiece;
        run_piece(segments_[i / pieces_], channel, std::min(kPiece, storage_.size - channel));
    }
}

const float* ShortConvStep::input(const Segment& segment, std::int64_t t) const {
    if (t >= segment.first) return x_ + t * storage_.size;
    return reinterpret_cast<const float*>(storage_.row(t - segment.first + storage_.heads, segment.source));
}

void ShortConvStep::run_piece(const Segment& segment, std::int64_t channel, std::int64_t count) const {
    const std::int64_t size = storage_.size;
    const std::int64_t before = storage_.heads;
    for (std::int64_t t = segment.begin; t < segment.end; ++t) {
        float* y = y_ + t * size + channel;
        for (std::int64_t j = 0; j <= before; ++j) {
            const float* x = input(segment, t - before + j) + channel;
            const float* filter = filter_.data() + j * size + channel;
            if (j == 0) {
                for (std::int64_t c = 0; c < count; ++c) y[c] = filter[c] * x[c];
            } else {
                for (std::int64_t c = 0; c < count; ++c) y[c] += filter[c] * x[c];
            }
        }
    }
    for (std::int64_t j = 0; j < before; ++j) {
        auto* state = reinterpret_cast<float*>(storage_.row(j, segment.target)) + channel;
        std::memcpy(state, input(segment, segment.end - before + j) + channel, count * sizeof(float));
    }
}

}  // namespace chaski
