// The gated delta net and Mamba 2 as steps. Rows of a segment's first chunk are stored before any step reads
// them, and rows of later chunks after the last read of the earlier ones.
#pragma once

#include <vector>

#include "chunks.h"

namespace chaski {

// An item is a segment and a key head.
class DeltaRowsStep final : public Step {
   public:
    DeltaRowsStep(int segments_dim, const GatedDelta& job, const ChunkSegment* segments, bool is_before)
        : segments_dim_(segments_dim), job_(job), segments_(segments), is_before_(is_before) {}
    void prepare(const Sizes& sizes) override;
    std::int64_t items(const Sizes& sizes) const override {
        return has_rows_ ? sizes[segments_dim_] * job_.key_heads() : 0;
    }
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const override;

   private:
    const int segments_dim_;
    const GatedDelta job_;
    const ChunkSegment* segments_;
    const bool is_before_;
    bool has_rows_ = true;
};

// An item is a segment, a key head, and a part of the columns of its heads: all columns, unless that leaves
// threads idle. `skip` is D of Mamba 2, [head], or empty.
class GatedDeltaStep final : public Step {
   public:
    GatedDeltaStep(const Ops& ops, int tokens_dim, int segments_dim, const GatedDelta& job,
                   std::vector<float> skip, const ChunkSegment* segments, int threads)
        : ops_(ops),
          tokens_dim_(tokens_dim),
          segments_dim_(segments_dim),
          skip_(std::move(skip)),
          job_(job),
          segments_(segments),
          threads_(threads) {
        if (!skip_.empty()) job_.skip = skip_.data();
    }
    void prepare(const Sizes& sizes) override;
    std::int64_t items(const Sizes& sizes) const override {
        return sizes[segments_dim_] * job_.key_heads() * parts_;
    }
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const override;
    std::size_t scratch_bytes() const override { return ops_.gated_delta_scratch(job_); }

   private:
    const Ops& ops_;
    const int tokens_dim_;
    const int segments_dim_;
    const std::vector<float> skip_;
    GatedDelta job_;
    const ChunkSegment* segments_;
    const int threads_;
    std::int64_t parts_ = 1;
};

}  // namespace chaski
