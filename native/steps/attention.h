// Attention as steps: tokens are grouped into tiles once a batch, then every layer works through the tiles.
#pragma once

#include <string>

#include "ops.h"
#include "plan.h"

namespace chaski {

// The tiles of a batch, made on the caller before the threads start.
struct Tiles {
    std::vector<Tile> list;
};

// Checks the spans of a batch and groups its tokens. Computes nothing else.
class TileStep final : public Step {
   public:
    TileStep(int tokens_dim, int history_dim, const Span* spans, std::int64_t max_tokens,
             std::int64_t tokens_per_tile, std::shared_ptr<Tiles> tiles);
    std::int64_t items(const Sizes&) const override { return 0; }
    std::int64_t grain(const Sizes&, int) const override { return 1; }
    void run(const Sizes&, std::int64_t, std::int64_t, std::byte*) const override {}
    void prepare(const Sizes& sizes) override;

   private:
    const int tokens_dim_;
    const int history_dim_;
    const Span* spans_;
    const std::int64_t tokens_per_tile_;
    std::shared_ptr<Tiles> tiles_;
};

class AttentionStep final : public Step {
   public:
    AttentionStep(const Ops& ops, const Attention& job, std::shared_ptr<const Tiles> tiles)
        : ops_(ops), job_(job), tiles_(std::move(tiles)) {}
    std::int64_t items(const Sizes&) const override {
        return static_cast<std::int64_t>(tiles_->list.size()) * job_.keys.heads;
    }
    std::int64_t grain(const Sizes&, int) const override { return 1; }
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const override;
    std::size_t scratch_bytes() const override;

   private:
    const Ops& ops_;
    const Attention job_;
    std::shared_ptr<const Tiles> tiles_;
};

// How many tokens a tile holds when `group` query heads share a key/value head.
std::int64_t tokens_per_tile(std::int64_t group);

}  // namespace chaski
