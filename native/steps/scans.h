// Recurrences whose states pass from token to token, as steps.
#pragma once

#include <vector>

#include "../include/generalized_delta.h"
#include "../include/selective_scan.h"
#include "plan.h"

namespace chaski {

// An item is a piece of the state of a sequence, whose segments follow each other.
class ScanStep : public Step {
   public:
    ScanStep(int tokens_dim, int segments_dim, const Segment* segments, std::int64_t pieces,
             std::int64_t cells)
        : tokens_dim_(tokens_dim),
          segments_dim_(segments_dim),
          segments_(segments),
          pieces_(pieces),
          cells_(cells) {}
    void prepare(const Sizes& sizes) override;
    std::int64_t items(const Sizes& sizes) const override { return sizes[segments_dim_] * pieces_; }
    std::int64_t piece(const Sizes&, std::int64_t, int) const override { return 1; }
    void run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte*) const override;

   private:
    virtual void scan(const Segment& segment, std::int64_t piece) const = 0;

    const int tokens_dim_;
    const int segments_dim_;
    const Segment* segments_;
    const std::int64_t pieces_;
    const std::int64_t cells_;
};

// The selective scan of Mamba. A piece is of channels.
class SelectiveScanStep final : public ScanStep {
   public:
    static constexpr std::int64_t kPiece = 64;

    // `a` is [state][channel].
    SelectiveScanStep(const Ops& ops, int tokens_dim, int segments_dim, const SelectiveScan& job,
                      std::vector<float> a, const Segment* segments)
        : ScanStep(tokens_dim, segments_dim, segments, (job.channels() + kPiece - 1) / kPiece,
                   job.states.cells),
          ops_(ops),
          a_(std::move(a)),
          job_(job) {
        job_.a = a_.data();
    }

   private:
    void scan(const Segment& segment, std::int64_t piece) const override;

    const Ops& ops_;
    const std::vector<float> a_;
    SelectiveScan job_;
};

// The generalized delta rule. A piece is of the columns of a head.
class GeneralizedDeltaStep final : public ScanStep {
   public:
    static constexpr std::int64_t kPiece = 64;

    GeneralizedDeltaStep(const Ops& ops, int tokens_dim, int segments_dim, const GeneralizedDelta& job,
                         const Segment* segments)
        : ScanStep(tokens_dim, segments_dim, segments, job.heads() * pieces_of_head(job), job.states.cells),
          ops_(ops),
          job_(job) {}

   private:
    static std::int64_t pieces_of_head(const GeneralizedDelta& job) {
        return (job.columns() + kPiece - 1) / kPiece;
    }
    void scan(const Segment& segment, std::int64_t piece) const override;

    const Ops& ops_;
    const GeneralizedDelta job_;
};

}  // namespace chaski
