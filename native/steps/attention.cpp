#include "attention.h"

#include <algorithm>
#include <stdexcept>

namespace chaski {

std::int64_t tokens_per_tile(std::int64_t group) { return std::max<std::int64_t>(1, kAttentionRows / group); }

TileStep::TileStep(int tokens_dim, int history_dim, const Span* spans, std::int64_t max_tokens,
                   std::int64_t tokens_per_tile, std::shared_ptr<Tiles> tiles)
    : tokens_dim_(tokens_dim),
      history_dim_(history_dim),
      spans_(spans),
      tokens_per_tile_(tokens_per_tile),
      tiles_(std::move(tiles)) {
    tiles_->list.reserve(max_tokens);
}

void TileStep::prepare(const Sizes& sizes) {
    std::vector<Tile>& list = tiles_->list;
    list.clear();
    std::int32_t base = 0;  // where the list of the tile's sequence would hold position 0
    for (std::int64_t i = 0; i < sizes[tokens_dim_]; ++i) {
        const Span& span = spans_[i];
        if (span.begin < 0 || span.begin >= span.end || span.end > sizes[history_dim_] || span.first < 0) {
            throw std::invalid_argument("spans[" + std::to_string(i) + "] = " + std::to_string(span.begin) +
                                        " to " + std::to_string(span.end) + " from position " +
                                        std::to_string(span.first) + " is not in a history of " +
                                        std::to_string(sizes[history_dim_]));
        }
        bool joins = !list.empty() && base == span.begin - span.first && list.back().count < tokens_per_tile_;
        if (joins) {
            ++list.back().count;
        } else {
            list.push_back({static_cast<std::int32_t>(i), 1});
            base = span.begin - span.first;
        }
    }
}

void AttentionStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const {
    auto tiles = static_cast<std::int64_t>(tiles_->list.size());
    for (std::int64_t i = begin; i < end; ++i) {
        ops_.attention(job_, tiles_->list[i % tiles], i / tiles, scratch);
    }
}

std::size_t AttentionStep::scratch_bytes() const {
    std::int64_t group = job_.heads / job_.keys.heads;
    return attention_scratch(group * tokens_per_tile(group), job_.keys.size, job_.values.size);
}

}  // namespace chaski
