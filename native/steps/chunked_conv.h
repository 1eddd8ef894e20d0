// The short convolution along sequences whose states are stored at chunk boundaries.
#pragma once

#include <vector>

#include "chunks.h"

namespace chaski {

// Computes the same as ShortConvStep. The input before a segment comes from the tokens of its open chunk in
// `rows` (a head for each row of the ring), and before these from `states` (a head for each of taps - 1
// rows). An item is a piece of the channels of a segment.
class ChunkedConvStep final : public Step {
   public:
    static constexpr std::int64_t kPiece = 512;

    // `filter` is [tap][channel].
    ChunkedConvStep(int tokens_dim, int segments_dim, const float* x, std::vector<float> filter,
                    const ChunkSegment* segments, KVStorage states, KVStorage rows, float* y);
    std::int64_t items(const Sizes& sizes) const override { return sizes[segments_dim_] * pieces_; }
    std::int64_t piece(const Sizes&, std::int64_t, int) const override { return 1; }
    void run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte*) const override;
    void prepare(const Sizes& sizes) override;

   private:
    void convolve(const ChunkSegment& segment, std::int64_t channel, std::int64_t count) const;
    void keep(const ChunkSegment& segment, std::int64_t channel, std::int64_t count) const;
    // The input of the token at a position.
    const float* input(const ChunkSegment& segment, std::int64_t at) const;

    const int tokens_dim_;
    const int segments_dim_;
    const float* x_;
    const std::vector<float> filter_;
    const ChunkSegment* segments_;
    const KVStorage states_;
    const KVStorage rows_;
    const std::int64_t pieces_;
    float* y_;
};

}  // namespace chaski
