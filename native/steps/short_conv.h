// A short causal convolution along each sequence of a batch, one filter per channel, with state rows in
// storage.
#pragma once

#include <vector>

#include "../include/segment.h"
#include "ops.h"
#include "plan.h"

namespace chaski {

// Throws std::invalid_argument if segments do not cover `tokens` tokens one after the other, or if they name
// rows outside the `cells` rows of states.
void check_segments(const Segment* segments, std::int64_t count, std::int64_t tokens, std::int64_t cells);

// y[t] = sum over j of filter[j] · x[t - taps + 1 + j], in order of j; x before the sequence's first token is
// the state, of taps - 1 rows, oldest first. An item is a piece of the channels of a segment. `storage` is
// float32 and has one head per row of state; no row may be the source of one segment and the target of
// another.
class ShortConvStep final : public Step {
   public:
    static constexpr std::int64_t kPiece = 512;

    // `filter` is [tap][channel].
    ShortConvStep(int tokens_dim, int segments_dim, const float* x, std::vector<float> filter,
                  const Segment* segments, KVStorage storage, float* y);
    std::int64_t items(const Sizes& sizes) const override { return sizes[segments_dim_] * pieces_; }
    std::int64_t piece(const Sizes&, std::int64_t, int) const override { return 1; }
    void run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte*) const override;
    void prepare(const Sizes& sizes) override;

   private:
    void run_piece(const Segment& segment, std::int64_t channel, std::int64_t count) const;
    // Row `t` of the segment's input, which may lie in its state.
    const float* input(const Segment& segment, std::int64_t t) const;

    const int tokens_dim_;
    const int segments_dim_;
    const float* x_;
    const std::vector<float> filter_;
    const Segment* segments_;
    const KVStorage storage_;
    const std::int64_t pieces_;
    float* y_;
};

}  // namespace chaski
