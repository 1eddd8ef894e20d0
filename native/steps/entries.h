// Attention to a window of tokens and to entries that stand for groups of earlier tokens (DeepSeek V4).
//
// An entry is stored with the last token of its group, in another storage. The history of a token is its
// window, in chunks cut at positions, and then its entries, in chunks cut at multiples of their number; both
// are chunks of the fused form of attention (ops.h), and are joined in this order.
#pragma once

#include "attention.h"
#include "kinds.h"
#include "ops.h"

namespace chaski {

// The entries that a token sees: those of all groups of `block` positions in its span of `cells`, or, if
// `count` is not 0, those that an indexer chose (choose.h). Then `cells` is [token][count · block + block -
// 1].
struct GroupEntries {
    KVStorage keys;  // their ends are the values
    const std::int32_t* cells;
    const Span* spans;  // [token]
    std::int64_t block;
    std::int64_t count;

    std::int64_t number(std::int64_t token) const {
        const std::int64_t groups = (spans[token].end - spans[token].begin) / block;
        return count > 0 && count < groups ? count : groups;
    }
    const std::int32_t* list(std::int64_t token) const {
        return count > 0 ? cells + token * (count * block + block - 1) : cells + spans[token].begin;
    }
};

// An item is a token and some of its query heads. The bits do not depend on the number of heads.
class EntryAttentionStep final : public Step {
   public:
    // `window` has one key head. A token sees at most `longest` entries, and no more of its window than
    // `window_length`.
    EntryAttentionStep(const Ops& ops, int tokens_dim, int history_dim, int entries_dim,
                       const Attention& window, const GroupEntries& entries, std::int64_t window_length,
                       std::int64_t longest, int threads);
    void prepare(const Sizes& sizes) override;
    std::int64_t items(const Sizes& sizes) const override { return sizes[tokens_dim_] * parts(); }
    std::int64_t piece(const Sizes&, std::int64_t, int) const override { return 1; }
    void run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte* scratch) const override;
    std::size_t scratch_bytes() const override;

   private:
    // The fewest heads of an item: each item gathers its entries again.
    static constexpr std::int64_t kHeads = 4;

    std::int64_t parts() const { return (window_.heads + heads_ - 1) / heads_; }
    void attend(std::int64_t token, std::int64_t first_head, std::byte* scratch) const;

    const Ops& ops_;
    const int tokens_dim_;
    const int history_dim_;
    const int entries_dim_;
    const Attention window_;
    const GroupEntries entries_;
    const std::int64_t most_chunks_;
    const std::int64_t longest_;
    const int threads_;
    const std::size_t attention_bytes_;
    std::int64_t heads_;  // of an item
};

}  // namespace chaski
