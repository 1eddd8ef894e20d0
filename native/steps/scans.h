// The selective scan of Mamba as a step.
#pragma once

#include <vector>

#include "../include/selective_scan.h"
#include "plan.h"

namespace chaski {

// An item is a piece of the channels of a sequence, whose segments follow each other.
class SelectiveScanStep final : public Step {
   public:
    static constexpr std::int64_t kPiece = 64;

    // `a` is [state][channel].
    SelectiveScanStep(const Ops& ops, int tokens_dim, int segments_dim, const SelectiveScan& job,
                      std::vector<float> a, const Segment* segments)
        : ops_(ops),
          tokens_dim_(tokens_dim),
          segments_dim_(segments_dim),
          a_(std::move(a)),
          job_(job),
          segments_(segments),
          pieces_((job.channels() + kPiece - 1) / kPiece) {
        job_.a = a_.data();
    }
    void prepare(const Sizes& sizes) override;
    std::int64_t items(const Sizes& sizes) const override { return sizes[segments_dim_] * pieces_; }
    std::int64_t piece(const Sizes&, std::int64_t, int) const override { return 1; }
    void run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte*) const override;

   private:
    const Ops& ops_;
    const int tokens_dim_;
    const int segments_dim_;
    const std::vector<float> a_;
    SelectiveScan job_;
    const Segment* segments_;
    const std::int64_t pieces_;
};

}  // namespace chaski
