#include "attention.h"

#include <algorithm>
#include <stdexcept>

namespace chaski {

namespace {

// The largest number of tokens, each with its own tile, that leaves threads without work.
std::int64_t split_tokens(std::int64_t kv_heads, int threads) {
    return threads == 1 ? 0 : (kItemsPerThread * threads - 1) / kv_heads;
}

}  // namespace

std::int64_t tokens_per_tile(std::int64_t group, bool is_plain) {
    return std::max<std::int64_t>(1, (is_plain ? kPlainAttentionRows : kAttentionRows) / group);
}

std::int64_t attention_parts(std::int64_t heads, std::int64_t kv_heads, std::int64_t value_size,
                             std::int64_t history, int threads) {
    std::int64_t tokens = split_tokens(kv_heads, threads);
    if (tokens == 0) return 0;
    std::int64_t chunks = history / kAttentionChunk + 2 * tokens;
    return chunks * kv_heads * part_floats(heads / kv_heads, value_size);
}

void check_span(const Span& span, std::int64_t i, std::int64_t length) {
    if (span.begin >= 0 && span.begin < span.end && span.end <= length && span.first >= 0) return;
    throw std::invalid_argument("spans[" + std::to_string(i) + "] = " + std::to_string(span.begin) + " to " +
                                std::to_string(span.end) + " from position " + std::to_string(span.first) +
                                " is not in a history of " + std::to_string(length));
}

TileStep::TileStep(int tokens_dim, int history_dim, std::int64_t width, const Span* spans,
                   std::int64_t max_tokens, std::int64_t tokens_per_tile, std::shared_ptr<Tiles> tiles)
    : tokens_dim_(tokens_dim),
      history_dim_(history_dim),
      width_(width),
      spans_(spans),
      tokens_per_tile_(tokens_per_tile),
      tiles_(std::move(tiles)) {
    tiles_->list.reserve(max_tokens);
    tiles_->chunks.reserve(max_tokens + 1);
}

void TileStep::prepare(const Sizes& sizes) {
    std::vector<Tile>& list = tiles_->list;
    list.clear();
    std::int32_t base = 0;  // the entry of position 0 in the list of the tile's sequence
    for (std::int64_t i = 0; i < sizes[tokens_dim_]; ++i) {
        const Span& span = spans_[i];
        check_span(span, i, sizes[history_dim_] * width_);
        bool joins = !list.empty() && base == span.begin - span.first && list.back().count < tokens_per_tile_;
        if (joins) {
            ++list.back().count;
        } else {
            list.push_back({static_cast<std::int32_t>(i), 1});
            base = span.begin - span.first;
        }
    }
    count_chunks();
}

void TileStep::count_chunks() {
    tiles_->chunks.assign(1, 0);
    tiles_->most_tokens = 0;
    for (const Tile& tile : tiles_->list) {
        const Span* spans = spans_ + tile.begin;
        std::int64_t first = spans[0].first;
        std::int64_t end = 0;  // positions
        for (std::int64_t i = 0; i < tile.count; ++i) {
            first = std::min<std::int64_t>(first, spans[i].first);
            end = std::max<std::int64_t>(end, std::int64_t{spans[i].first} + spans[i].end - spans[i].begin);
        }
        std::int64_t count = (end + kAttentionChunk - 1) / kAttentionChunk - first / kAttentionChunk;
        tiles_->chunks.push_back(tiles_->chunks.back() + count);
        tiles_->most_tokens = std::max<std::int64_t>(tiles_->most_tokens, tile.count);
    }
}

AttentionStep::AttentionStep(const Ops& ops, const Attention& job, std::vector<float> distances,
                             std::shared_ptr<const Tiles> tiles, std::int64_t tokens_per_tile, float* parts,
                             std::int64_t parts_size, int threads)
    : ops_(ops),
      distances_(std::move(distances)),
      job_(job),
      tiles_(std::move(tiles)),
      tokens_per_tile_(tokens_per_tile),
      parts_(parts),
      parts_size_(parts_size),
      threads_(threads),
      missing_(static_cast<std::size_t>(kItemsPerThread * threads)) {
    job_.distances = distances_.empty() ? nullptr : distances_.data();
}

void AttentionStep::prepare(const Sizes&) {
    auto tiles = static_cast<std::int64_t>(tiles_->list.size());
    std::int64_t heads = job_.keys.heads;
    std::int64_t chunks = tiles_->chunks.back();
    part_size_ = part_floats(tiles_->most_tokens * job_.group(), job_.value_size);
    is_split_ = !job_.is_plain && tiles * heads < kItemsPerThread * threads_ && tiles < chunks &&
                chunks * heads * part_size_ <= parts_size_;
    if (!is_split_) return;
    for (std::int64_t i = 0; i < tiles * heads; ++i) {
        missing_[i].store(tiles_->chunks[i % tiles + 1] - tiles_->chunks[i % tiles],
                          std::memory_order_relaxed);
    }
}

std::int64_t AttentionStep::items(const Sizes&) const {
    return job_.keys.heads *
           (is_split_ ? tiles_->chunks.back() : static_cast<std::int64_t>(tiles_->list.size()));
}

void AttentionStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const {
    auto tiles = static_cast<std::int64_t>(tiles_->list.size());
    for (std::int64_t i = begin; i < end; ++i) {
        if (is_split_)
            run_chunk(i, scratch);
        else
            ops_.attention(job_, tiles_->list[i % tiles], i / tiles, scratch);
    }
}

void AttentionStep::run_chunk(std::int64_t item, std::byte* scratch) const {
    const std::vector<std::int64_t>& starts = tiles_->chunks;
    std::int64_t head = item / starts.back();
    std::int64_t index = item % starts.back();
    auto tile = std::upper_bound(starts.begin(), starts.end(), index) - starts.begin() - 1;
    float* parts = parts_ + (head * starts.back() + starts[tile]) * part_size_;
    std::int64_t chunk = index - starts[tile];
    const Tile& tokens = tiles_->list[tile];
    std::int64_t size = part_floats(tokens.count * job_.group(), job_.value_size);
    ops_.attention_chunk(job_, tokens, head, chunk, parts + chunk * size, scratch);
    auto& missing = missing_[head * static_cast<std::int64_t>(tiles_->list.size()) + tile];
    if (missing.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        ops_.attention_join(job_, tokens, head, starts[tile + 1] - starts[tile], parts, scratch);
    }
}

std::size_t AttentionStep::scratch_bytes() const {
    return ops_.attention_scratch(job_, job_.group() * tokens_per_tile_);
}

}  // namespace chaski
