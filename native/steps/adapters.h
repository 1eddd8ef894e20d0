// Steps of LoRA adapters: the rows of a batch are sorted by adapter, and each pair of matrices is read once
// for all rows that it changes.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "kinds.h"
#include "lora.h"
#include "matmul.h"
#include "ops.h"

namespace chaski {

// The matrices of the loaded adapters, by slot and by the number of the matrix that they change. Slots may be
// filled and emptied while no run uses them. The caller that fills a slot owns its memory.
class LoraTable {
   public:
    LoraTable(std::int64_t slots, std::int64_t matrices) : slots_(slots), matrices_(matrices) {
        pairs_.resize(slots * matrices);
        ranks_.resize(slots);
    }

    std::int64_t slots() const { return slots_; }
    std::int64_t matrices() const { return matrices_; }
    const Lora& at(std::int64_t slot, std::int64_t matrix) const { return pairs_[slot * matrices_ + matrix]; }
    // The most floats of t that a row needs with the adapter of a slot, for any matrix.
    std::int64_t width(std::int64_t slot) const { return ranks_[slot]; }

    void put(std::int64_t slot, std::int64_t matrix, const Lora& pair) {
        pairs_[slot * matrices_ + matrix] = pair;
        ranks_[slot] = std::max(ranks_[slot], kLanes * pair.rank_panels());
    }
    void clear(std::int64_t slot) {
        std::fill_n(pairs_.begin() + slot * matrices_, matrices_, Lora{});
        ranks_[slot] = 0;
    }

   private:
    const std::int64_t slots_;
    const std::int64_t matrices_;
    std::vector<Lora> pairs_;
    std::vector<std::int64_t> ranks_;
};

// One adapter of a list. The lists of a batch follow each other, each in the order of its request.
struct LoraUse {
    std::int32_t list;
    std::int32_t slot;
    float scale;
};

// Rows of a batch that have the same adapter at the same place `order` of their lists. Groups are sorted by
// `order`. The rows of a group, `first` to `first + count` of all, are in the order of the batch.
struct LoraGroup {
    std::int32_t order;
    std::int32_t slot;
    std::int32_t first;
    std::int32_t count;
};

// A row of a group, and the start of its t.
struct GroupedRow {
    std::int32_t row;
    std::int32_t t;
    float scale;
};

struct LoraRows {
    // Number of rows that one thread multiplies by A at once.
    static constexpr std::int32_t kTile = 16;
    // Rows of one group, at most this many.
    struct Part {
        std::int32_t slot;
        std::int32_t first;
        std::int32_t count;
    };

    std::vector<LoraGroup> groups;
    std::vector<GroupedRow> rows;
    std::vector<Part> parts;
};

// Sorts the rows of a dimension by their adapters. `lists` contains the list of each row, or -1. Throws
// std::invalid_argument for numbers that do not exist, and if the t of a row exceed `max_width` floats.
class GroupLoraRowsStep final : public SetupStep {
   public:
    GroupLoraRowsStep(int dim, int uses_dim, const std::int32_t* lists, const LoraUse* uses,
                      std::shared_ptr<const LoraTable> table, std::int64_t max_width,
                      std::shared_ptr<LoraRows> rows)
        : dim_(dim),
          uses_dim_(uses_dim),
          lists_(lists),
          uses_(uses),
          table_(std::move(table)),
          max_width_(max_width),
          rows_(std::move(rows)) {}
    void prepare(const Sizes& sizes) override;

   private:
    const int dim_;
    const int uses_dim_;
    const std::int32_t* lists_;
    const LoraUse* uses_;
    const std::shared_ptr<const LoraTable> table_;
    const std::int64_t max_width_;
    const std::shared_ptr<LoraRows> rows_;
};

// t = A x · scale of all rows with adapters.
struct LoraTerms {
    float* t;                              // of a row at the place in GroupedRow
    std::atomic<std::int64_t> missing{0};  // parts
};

// Computes `terms`. An item is a part of the rows of one adapter.
class LoraDownStep final : public Step {
   public:
    LoraDownStep(const Ops& ops, std::shared_ptr<const LoraTable> table, std::int64_t matrix,
                 std::shared_ptr<const LoraRows> rows, std::int64_t columns, const float* x,
                 std::shared_ptr<LoraTerms> terms)
        : ops_(ops),
          table_(std::move(table)),
          matrix_(matrix),
          rows_(std::move(rows)),
          columns_(columns),
          x_(x),
          terms_(std::move(terms)) {}
    void prepare(const Sizes& sizes) override { terms_->missing.store(items(sizes)); }
    std::int64_t items(const Sizes&) const override { return static_cast<std::int64_t>(rows_->parts.size()); }
    // Half of the threads take all parts, because this work waits for memory. The others continue with later
    // steps, which compute.
    std::int64_t piece(const Sizes& sizes, std::int64_t, int threads) const override {
        return std::max<std::int64_t>(2 * items(sizes) / threads, 1);
    }
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const override;

   private:
    const Ops& ops_;
    const std::shared_ptr<const LoraTable> table_;
    const std::int64_t matrix_;
    const std::shared_ptr<const LoraRows> rows_;
    const std::int64_t columns_;
    const float* x_;
    const std::shared_ptr<LoraTerms> terms_;
};

// y = x · Wᵀ (+ bias), then + B t for all rows with adapters, then + residual. Items are panels of 16 output
// rows. It follows the step of its terms in the same phase, so that some threads multiply by W while others
// read B.
class AdaptedMatmulStep final : public Step {
   public:
    // `product` has no residual.
    AdaptedMatmulStep(const Ops& ops, int dim, MatmulStep product, std::shared_ptr<const LoraTable> table,
                      std::int64_t matrix, std::shared_ptr<const LoraRows> rows, std::int64_t width,
                      std::shared_ptr<const LoraTerms> terms, const float* residual, float* y)
        : ops_(ops),
          dim_(dim),
          product_(std::move(product)),
          table_(std::move(table)),
          matrix_(matrix),
          rows_(std::move(rows)),
          width_(width),
          terms_(std::move(terms)),
          residual_(residual),
          y_(y) {}
    void prepare(const Sizes& sizes) override;
    std::int64_t items(const Sizes& sizes) const override { return product_.items(sizes); }
    // At most as many panels as have parts of B that are still in the second-level cache when the product
    // reaches them.
    std::int64_t piece(const Sizes& sizes, std::int64_t left, int threads) const override {
        return std::min(product_.piece(sizes, left, threads), most_panels_);
    }
    std::span<const std::byte> weights() const override { return product_.weights(); }
    std::size_t scratch_bytes() const override { return product_.scratch_bytes(); }
    void run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte* scratch) const override;

   private:
    // Number of panels whose part of B stays in the first-level cache while a group of rows passes.
    static constexpr std::int64_t kBlock = 16;

    // Each adapter's part of B for the panels `first` to `last` - 1.
    std::vector<Stretch> parts_of_b(std::int64_t first, std::int64_t last) const;
    // Waits for threads that still compute parts of the terms.
    void wait_for_terms() const;
    void add_group(std::size_t index, std::int64_t first, std::int64_t last) const;
    // The place of a panel, which may be after the end, since it is only prefetched.
    const std::byte* part_of_b(std::int64_t slot, std::int64_t panel) const;

    const Ops& ops_;
    const int dim_;
    MatmulStep product_;
    const std::shared_ptr<const LoraTable> table_;
    const std::int64_t matrix_;
    const std::shared_ptr<const LoraRows> rows_;
    const std::int64_t width_;
    const std::shared_ptr<const LoraTerms> terms_;
    const float* residual_;  // or null
    float* y_;
    std::int64_t most_panels_ = 1;
};

}  // namespace chaski
