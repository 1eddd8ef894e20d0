// Matrix products and embedding look-ups as steps of a plan.
#pragma once

#include <memory>

#include "elementwise.h"
#include "kernels.h"
#include "memory.h"
#include "plan.h"

namespace chaski {

// A packed matrix together with the memory that it lies in.
struct OwnedMatrix {
    Matrix matrix;
    std::shared_ptr<Region> memory;
};

// y = x · Wᵀ (+ bias) (+ residual). Items are panels of 16 output rows.
class MatmulStep final : public Step {
   public:
    MatmulStep(const Kernels& kernels, int dim, std::int64_t max_tokens, const OwnedMatrix& weight,
               const Activations& x, const Output& out)
        : kernels_(kernels), dim_(dim), max_tokens_(max_tokens), weight_(weight), x_(x), out_(out) {}

    std::int64_t items(const Sizes& sizes) const override {
        return sizes[dim_] == 0 ? 0 : num_panels(weight_.matrix.rows);
    }
    std::int64_t piece(const Sizes&, std::int64_t left, int threads) const override {
        constexpr std::int64_t kSlab = 4;
        return shrinking_piece(left, threads, kSlab);
    }
    void run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte* scratch) const override {
        kernels_.matmul(weight_.matrix, begin, end, x_, sizes[dim_], out_, scratch);
    }
    std::size_t scratch_bytes() const override {
        return static_cast<std::size_t>(kernels_.matmul_scratch_bytes(weight_.matrix, max_tokens_));
    }

   private:
    const Kernels& kernels_;
    const int dim_;
    const std::int64_t max_tokens_;
    const OwnedMatrix weight_;
    const Activations x_;
    const Output out_;
};

class EmbeddingStep final : public RowStep {
   public:
    EmbeddingStep(const Kernels& kernels, int dim, const OwnedMatrix& table, const std::int32_t* ids,
                  float* y)
        : RowStep(dim), kernels_(kernels), table_(table), ids_(ids), y_(y) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const override {
        std::int64_t width = table_.matrix.k;
        for (std::int64_t i = begin; i < end; ++i) {
            kernels_.unpack_row(table_.matrix, ids_[i], y_ + i * width);
        }
    }

   private:
    const Kernels& kernels_;
    const OwnedMatrix table_;
    const std::int32_t* ids_;
    float* y_;
};

}  // namespace chaski
