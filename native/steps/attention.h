// Attention as steps: tokens are grouped into tiles once per batch, then every layer works through the tiles.
#pragma once

#include <atomic>

#include "kinds.h"
#include "ops.h"

namespace chaski {

// The tiles of a batch, which the caller makes before the threads start.
struct Tiles {
    std::vector<Tile> list;
    // The number of chunks in the history of the tiles before each tile, and last the total.
    std::vector<std::int64_t> chunks;
    std::int64_t most_tokens = 0;  // of a tile
    // The spans of tokens in the cells that an indexer chose; empty for tiles of a whole history.
    std::vector<Span> chosen;
};

// Throws unless span i is part of a history of `length` entries.
void check_span(const Span& span, std::int64_t i, std::int64_t length);

// Checks the spans of a batch and groups its tokens. The history has `width` entries for each of
// `history_dim`.
class TileStep final : public SetupStep {
   public:
    TileStep(int tokens_dim, int history_dim, std::int64_t width, const Span* spans, std::int64_t max_tokens,
             std::int64_t tokens_per_tile, std::shared_ptr<Tiles> tiles);
    void prepare(const Sizes& sizes) override;

   private:
    void count_chunks();

    const int tokens_dim_;
    const int history_dim_;
    const std::int64_t width_;
    const Span* spans_;
    const std::int64_t tokens_per_tile_;
    std::shared_ptr<Tiles> tiles_;
};

// With fewer items per thread than this, threads wait for the thread with the last item.
constexpr std::int64_t kItemsPerThread = 4;

// An item is a tile and a key/value head. If these are too few for the threads, an item is one chunk, whose
// result is stored in `parts`; the thread that finishes the last chunk joins them. The bits are the same.
class AttentionStep final : public Step {
   public:
    // `distances` are those of the job, or empty.
    AttentionStep(const Ops& ops, const Attention& job, std::vector<float> distances,
                  std::shared_ptr<const Tiles> tiles, std::int64_t tokens_per_tile, float* parts,
                  std::int64_t parts_size, int threads);
    std::int64_t items(const Sizes&) const override;
    // Neighbouring chunks go to one thread, so that it reads memory in order. The costs of whole tiles may
    // differ a lot.
    std::int64_t piece(const Sizes&, std::int64_t left, int threads) const override {
        return is_split_ ? shrinking_piece(left, threads, 1) : 1;
    }
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const override;
    std::size_t scratch_bytes() const override;
    void prepare(const Sizes& sizes) override;

   private:
    void run_chunk(std::int64_t item, std::byte* scratch) const;

    const Ops& ops_;
    const std::vector<float> distances_;
    Attention job_;
    std::shared_ptr<const Tiles> tiles_;
    const std::int64_t tokens_per_tile_;
    float* parts_;
    const std::int64_t parts_size_;
    const int threads_;
    bool is_split_ = false;
    std::int64_t part_size_ = 0;
    mutable std::vector<std::atomic<std::int64_t>> missing_;  // chunks of each tile and head
};

// The number of tokens in a tile when `group` query heads share a key/value head.
std::int64_t tokens_per_tile(std::int64_t group, bool is_plain);

// Floats for the parts of a split batch: one token of each sequence, for the largest number of sequences that
// leaves threads idle.
std::int64_t attention_parts(std::int64_t heads, std::int64_t kv_heads, std::int64_t value_size,
                             std::int64_t history, int threads);

}  // namespace chaski
