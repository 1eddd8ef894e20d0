// Matrix products and embedding look-ups as steps.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels.h"
#include "kinds.h"
#include "ops.h"
#include "variant_picks.h"
#include "weights.h"

namespace chaski {

// The kernels' matmul. Panels that are not laid out yet are read from their file for this product, so that
// the first logits do not wait until all memory is filled.
class Multiplier {
   public:
    // `number`: the number of the product in its plan.
    Multiplier(const Kernels& kernels, std::shared_ptr<VariantPicks> picks, std::int64_t number)
        : kernels_(kernels), picks_(std::move(picks)), turn_{number, 0} {}

    // Call it before every run of the plan.
    void begin() { ++turn_.run; }
    void operator()(const OwnedMatrix& weight, std::int64_t panel_begin, std::int64_t panel_end,
                    const Activations& x, std::int64_t n, const Output& out, std::byte* scratch) const;
    std::size_t scratch_bytes(const OwnedMatrix& weight, std::int64_t n) const;
    // The same for a matrix in memory.
    void operator()(const Matrix& m, std::int64_t panel_begin, std::int64_t panel_end, const Activations& x,
                    std::int64_t n, const Output& out, std::byte* scratch) const {
        multiply(m, panel_begin, panel_end, x, n, out, scratch, turn_);
    }
    std::size_t scratch_bytes(const Matrix& m, std::int64_t n) const;
    // Compute limits a product of many tokens, and memory limits a product of few tokens.
    bool leaves_memory_idle(std::int64_t n) const { return n > kernels_.stream_tokens; }

   private:
    void multiply(const Matrix& m, std::int64_t panel_begin, std::int64_t panel_end, const Activations& x,
                  std::int64_t n, const Output& out, std::byte* scratch,
                  std::optional<VariantPicks::Turn> turn) const;
    // The same for panels in their file. `rows`: their rows, if a stream has read them. Returns false when
    // they cannot be read.
    bool multiply_stored(const OwnedMatrix& weight, std::int64_t panel_begin, std::int64_t panel_end,
                         const std::uint8_t* rows, const Activations& x, std::int64_t n, const Output& out,
                         std::byte* scratch) const;

    const Kernels& kernels_;
    const std::shared_ptr<VariantPicks> picks_;
    VariantPicks::Turn turn_;
};

// y = x · Wᵀ (+ bias) (+ residual). Items are panels of 16 output rows.
class MatmulStep final : public Step {
   public:
    MatmulStep(Multiplier multiply, int dim, std::int64_t max_tokens, const OwnedMatrix& weight,
               const Activations& x, const Output& out)
        : multiply_(std::move(multiply)),
          dim_(dim),
          max_tokens_(max_tokens),
          weight_(weight),
          x_(x),
          out_(out) {}

    std::int64_t items(const Sizes& sizes) const override {
        return sizes[dim_] == 0 ? 0 : num_panels(weight_.matrix.rows);
    }
    std::int64_t piece(const Sizes&, std::int64_t left, int threads) const override {
        constexpr std::int64_t kSlab = 4;
        const std::int64_t shrinking = shrinking_piece(left, threads, kSlab);
        // Threads take the rows of a stream near each other.
        const bool is_streamed = !weight_.is_laid_out() && weight_.origin->stream != nullptr;
        return is_streamed ? std::min(shrinking, weight_.origin->piece_panels) : shrinking;
    }
    void run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte* scratch) const override {
        multiply(sizes, begin, end, {}, scratch);
    }
    std::span<const std::byte> weights() const override;
    // Multiplies in the same way, and prefetches `later`, which the caller reads next.
    void multiply(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::span<const Stretch> later,
                  std::byte* scratch) const;
    std::size_t scratch_bytes() const override { return multiply_.scratch_bytes(weight_, max_tokens_); }
    void prepare(const Sizes&) override { multiply_.begin(); }

   private:
    Multiplier multiply_;
    const int dim_;
    const std::int64_t max_tokens_;
    const OwnedMatrix weight_;
    const Activations x_;
    const Output out_;
};

// y = x · Wᵀ for each head: [token][head][k] times the head's own matrix -> [token][head][rows]. An item is a
// slab of panels of one head.
class HeadMatmulStep final : public Step {
   public:
    HeadMatmulStep(Multiplier multiply, int dim, std::int64_t max_tokens, std::vector<OwnedMatrix> heads,
                   const Activations& x, float* y)
        : multiply_(std::move(multiply)),
          dim_(dim),
          most_(std::min(max_tokens, kTokens)),
          heads_(std::move(heads)),
          slabs_((num_panels(heads_[0].matrix.rows) + kSlab - 1) / kSlab),
          x_(x),
          y_(y) {}

    std::int64_t items(const Sizes& sizes) const override {
        return sizes[dim_] == 0 ? 0 : std::ssize(heads_) * slabs_;
    }
    std::int64_t piece(const Sizes&, std::int64_t left, int threads) const override {
        return shrinking_piece(left, threads, 1);
    }
    void run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte* scratch) const override;
    std::size_t scratch_bytes() const override;
    void prepare(const Sizes&) override { multiply_.begin(); }

   private:
    static constexpr std::int64_t kSlab = 8;      // panels
    static constexpr std::int64_t kTokens = 128;  // whose rows of one head are copied at a time

    // The rows of one head of some tokens, one after the other. Several are copied to `room`.
    Activations rows_of(std::int64_t head, std::int64_t token, std::int64_t count, std::byte* room) const;

    Multiplier multiply_;
    const int dim_;
    const std::int64_t most_;
    const std::vector<OwnedMatrix> heads_;
    const std::int64_t slabs_;
    const Activations x_;
    float* y_;
};

// The rows of the table that `ids` names, as float32.
class EmbeddingStep final : public RowStep {
   public:
    EmbeddingStep(const Kernels& kernels, int dim, const OwnedMatrix& table, const std::int32_t* ids,
                  float* y)
        : RowStep(dim), kernels_(kernels), table_(table), ids_(ids), y_(y) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const override;
    std::size_t scratch_bytes() const override;

   private:
    const Kernels& kernels_;
    const OwnedMatrix table_;
    const std::int32_t* ids_;
    float* y_;
};

// Multiplies each row by a matrix of float32 rows [depth][width], with one serial sum along the depth per
// element.
class ProductStep final : public RowStep {
   public:
    ProductStep(const Ops& ops, int dim, std::int64_t depth, std::int64_t width, const float* matrix,
                const float* x, float* y)
        : RowStep(dim), ops_(ops), depth_(depth), width_(width), matrix_(matrix), x_(x), y_(y) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const override {
        std::memset(y_ + begin * width_, 0, (end - begin) * width_ * sizeof(float));
        for (std::int64_t k = 0; k < depth_; ++k) {
            for (std::int64_t i = begin; i < end; ++i) {
                ops_.add_scaled(y_ + i * width_, matrix_ + k * width_, x_[i * depth_ + k], width_);
            }
        }
    }

   private:
    const Ops& ops_;
    const std::int64_t depth_;
    const std::int64_t width_;
    const float* matrix_;
    const float* x_;
    float* y_;
};

}  // namespace chaski
