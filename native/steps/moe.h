// Mixture of experts: tokens choose experts, rows are sorted by expert, and each expert multiplies its rows.
//
// A token that chooses `count` experts makes `count` pairs; pair number token · count + j is its j-th choice.
// Between dispatching and combining, each pair has one row; rows are sorted by expert, then by token.
#pragma once

#include <memory>
#include <vector>

#include "expert_store.h"
#include "matmul.h"
#include "quantizer.h"

namespace chaski {

// The function from scores to weights; the numbers are those of Python's Gating.
enum class Gating : int { kSoftmax = 0, kSigmoid = 1, kChosenSoftmax = 2, kSqrtSoftplus = 3, kNearest = 4 };

struct RouterConfig {
    std::int64_t experts;
    std::int64_t count;  // number of experts that a token chooses
    Gating gating;
    bool normalized;
    float scale;
    const float* bias;  // [experts], added only to choose experts; or null
    // The experts are divided into groups of the same size, by number. The rank of a group is the sum of its
    // `best_of_group` highest ranks of experts, in descending order. Only experts of the `used_groups` groups
    // with the highest rank are chosen; among equals, those with the lower index. 1 group: all.
    std::int64_t groups;
    std::int64_t used_groups;
    std::int64_t best_of_group;
    // Null, or the experts of tokens with the number of each row [vocabulary][count], which replace the
    // choice.
    const std::int32_t* tokens;
    std::vector<std::int32_t> table;
};

// [token][2][count]: the chosen experts, best first and the lower index first among equals, and their
// weights.
class RouterStep final : public RowStep {
   public:
    RouterStep(const Ops& ops, int dim, RouterConfig router, const float* logits, float* routes);
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const override;
    std::size_t scratch_bytes() const override {
        return (3 * router_.experts + router_.groups + router_.best_of_group) * sizeof(float);
    }

   private:
    // Gives the experts of unused groups the lowest rank; `room` is for a number of each group and each of
    // the best of one.
    void limit(float* ranks, float* room) const;
    void score(const float* logits, float* scores) const;
    void look_up(std::int64_t row, float* experts) const;
    // Gating by nearness sets the weights here, and needs `room` for a number of each expert.
    void choose(const float* logits, float* ranks, float* experts, float* room) const;
    float share_of_nearest(const float* logits, const float* left, std::int64_t best, float* room) const;
    void set_weights(const float* scores, const float* experts, float* weights) const;

    const Ops& ops_;
    const RouterConfig router_;
    const Elementwise& softplus_;
    const float* logits_;
    float* routes_;
};

// Copies routes and multiplies each weight by the scale of its expert: [experts].
class ScaleExpertsStep final : public RowStep {
   public:
    ScaleExpertsStep(int dim, std::int64_t experts, std::int64_t count, const float* scales,
                     const float* routes, float* scaled)
        : RowStep(dim), experts_(experts), count_(count), scales_(scales), routes_(routes), scaled_(scaled) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const override;

   private:
    const std::int64_t experts_;
    const std::int64_t count_;
    const float* scales_;
    const float* routes_;
    float* scaled_;
};

// Four parallel lists of [token · count] entries. Entry i of `pair` is the pair of row i; entry i of `row` is
// the row of pair i. Groups are the chosen experts in ascending order: entry i of `expert` is the expert of
// group i, and entry i of `end` is the end of its rows. Groups after the last one have no rows. The rows
// after the last group are those of experts that are elsewhere.
struct Group {
    std::int32_t pair;
    std::int32_t row;
    std::int32_t expert;
    std::int32_t end;
};

// `places` are the numbers of the experts' matrices among `matrices`; the number `matrices` stands for an
// expert that is elsewhere. Null: matrices have the numbers of their experts.
class GroupByExpertStep final : public Step {
   public:
    GroupByExpertStep(int dim, std::int64_t experts, std::int64_t count, std::int64_t matrices,
                      const std::int32_t* places, const float* routes, Group* groups)
        : dim_(dim),
          experts_(experts),
          count_(count),
          matrices_(matrices),
          places_(places),
          routes_(routes),
          groups_(groups) {}
    std::int64_t items(const Sizes& sizes) const override { return sizes[dim_] == 0 ? 0 : 1; }
    void run(const Sizes& sizes, std::int64_t, std::int64_t, std::byte* scratch) const override;
    std::size_t scratch_bytes() const override { return (matrices_ + 1) * sizeof(std::int32_t); }

   private:
    std::int32_t matrix_of(std::int64_t pair) const;

    const int dim_;
    const std::int64_t experts_;
    const std::int64_t count_;
    const std::int64_t matrices_;
    const std::int32_t* places_;
    const float* routes_;
    Group* groups_;
};

// Copies rows of tokens to rows of pairs; with `routes`, times the weight of each pair.
std::unique_ptr<Step> dispatch(const Ops& ops, int dim, std::int64_t count, std::int64_t width,
                               const float* x, const float* routes, const Group* groups, float* y);

// The same for rows that are already quantized.
std::unique_ptr<Step> dispatch_quantized(int dim, std::int64_t count, std::int64_t width,
                                         const Activations& x, const Group* groups, const Activations& y);

// Multiplies rows of pairs by the number of their expert.
std::unique_ptr<Step> scale_by_expert(const Ops& ops, int dim, std::int64_t count, std::int64_t width,
                                      const float* scales, const float* x, const Group* groups, float* y);

// Requests the experts of groups in stacks of a store, which later steps multiply by.
class RequestExpertsStep final : public Step {
   public:
    RequestExpertsStep(int dim, std::int64_t count, std::shared_ptr<ExpertStore> store,
                       std::vector<int> stacks, const Group* groups)
        : dim_(dim), count_(count), store_(std::move(store)), stacks_(std::move(stacks)), groups_(groups) {}
    std::int64_t items(const Sizes& sizes) const override { return sizes[dim_] == 0 ? 0 : 1; }
    void run(const Sizes& sizes, std::int64_t, std::int64_t, std::byte* scratch) const override;
    std::size_t scratch_bytes() const override {
        return store_->stack(stacks_[0]).offsets.size() * sizeof(ChosenExpert);
    }

   private:
    const int dim_;
    const std::int64_t count_;
    const std::shared_ptr<ExpertStore> store_;
    const std::vector<int> stacks_;
    const Group* groups_;
};

// The matrices of experts for a product: `all` are in memory, or else a store has them as its stack `number`.
struct ExpertMatrices {
    std::int64_t count, rows, k;
    std::vector<OwnedMatrix> all;
    std::shared_ptr<ExpertStore> store;
    int number = 0;
};

// y = x · Wᵀ + bias with the matrix of each row's expert. An item is a slab of panels of one group, so only
// chosen experts are read, each of them once. Groups whose experts are in memory come first.
class ExpertMatmulStep final : public Step {
   public:
    ExpertMatmulStep(Multiplier multiply, int dim, std::int64_t max_tokens, std::int64_t count,
                     ExpertMatrices experts, const float* bias, const Activations& x, const Group* groups,
                     float* y)
        : multiply_(std::move(multiply)),
          dim_(dim),
          max_tokens_(max_tokens),
          count_(count),
          experts_(std::move(experts)),
          slabs_((num_panels(experts_.rows) + kSlab - 1) / kSlab),
          bias_(bias),
          x_(x),
          groups_(groups),
          y_(y) {}
    std::int64_t items(const Sizes& sizes) const override { return max_groups(sizes) * slabs_; }
    // The last groups are mostly empty if tokens choose the same experts.
    std::int64_t piece(const Sizes&, std::int64_t left, int threads) const override {
        return std::min(shrinking_piece(left, threads, 1), slabs_);
    }
    void run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte* scratch) const override;
    std::size_t scratch_bytes() const override;
    void prepare(const Sizes&) override { multiply_.begin(); }

   private:
    static constexpr std::int64_t kSlab = 4;  // panels

    std::int64_t max_groups(const Sizes& sizes) const {
        return std::min(sizes[dim_] * count_, experts_.count);
    }
    std::int64_t first_row(std::int64_t group) const { return group == 0 ? 0 : groups_[group - 1].end; }
    void multiply(std::int64_t group, std::int64_t panel_begin, std::int64_t panel_end,
                  std::byte* scratch) const;

    Multiplier multiply_;
    const int dim_;
    const std::int64_t max_tokens_;
    const std::int64_t count_;
    const ExpertMatrices experts_;
    const std::int64_t slabs_;
    const float* bias_;  // [expert][rows], or null
    const Activations x_;
    const Group* groups_;
    float* y_;
};

// Takes the rows of experts that are elsewhere from `other`, whose rows `other_groups` sorts, and all others
// from `x`.
class JoinExpertsStep final : public RowStep {
   public:
    JoinExpertsStep(int dim, std::int64_t count, std::int64_t width, const float* x, const Group* groups,
                    const float* other, const Group* other_groups, float* y)
        : RowStep(dim),
          count_(count),
          width_(width),
          x_(x),
          groups_(groups),
          other_(other),
          other_groups_(other_groups),
          y_(y) {}
    void run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte*) const override;

   private:
    const std::int64_t count_, width_;
    const float* x_;
    const Group* groups_;
    const float* other_;
    const Group* other_groups_;
    float* y_;
};

// The sum of a token's rows in the order of its choices; with `routes`, each row times its weight.
std::unique_ptr<Step> combine(const Ops& ops, int dim, std::int64_t count, std::int64_t width, const float* x,
                              const float* routes, const Group* groups, float* y);

}  // namespace chaski
