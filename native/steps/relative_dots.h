// The step of products with vectors for distances, which attention with relative positions adds to its
// scores.
#pragma once

#include "kinds.h"
#include "ops.h"

namespace chaski {

// Sizes of the step: x is [row][heads][size], y is [row][heads][count].
struct RelativeDots {
    std::int64_t heads;
    std::int64_t size;
    std::int64_t count;
};

// y[i][h][j] = the sum over d, ascending, of x[i][h][d] · table[first[i] + j][d]. Each product is added by a
// fused multiply-add, the first to 0. Rows outside of the table [row of table_dim][size] count as zeros.
class RelativeDotsStep final : public RowStep {
   public:
    RelativeDotsStep(const Ops& ops, int dim, int table_dim, RelativeDots job, const float* x,
                     const float* table, const std::int32_t* first, float* y)
        : RowStep(dim),
          ops_(ops),
          table_dim_(table_dim),
          job_(job),
          x_(x),
          table_(table),
          first_(first),
          y_(y) {}
    void run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte* scratch) const override;
    std::size_t scratch_bytes() const override {
        return static_cast<std::size_t>(job_.size * job_.count) * sizeof(float);
    }

   private:
    const Ops& ops_;
    const int table_dim_;
    const RelativeDots job_;
    const float* const x_;
    const float* const table_;
    const std::int32_t* const first_;
    float* const y_;
};

}  // namespace chaski
