#include "choose.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>

namespace chaski {

namespace {

std::int64_t first_chunk(const Span& span, const KeyChoice& choice) {
    return span.first / choice.scored() / kAttentionChunk;
}

}  // namespace

ChooseStep::ChooseStep(const Ops& ops, int tokens_dim, int history_dim, const Indexer& job, KeyChoice choice,
                       std::int64_t longest, float* parts, int threads, std::int32_t* chosen)
    : ops_(ops),
      tokens_dim_(tokens_dim),
      history_dim_(history_dim),
      job_(job),
      choice_(choice),
      longest_(longest),
      parts_(parts),
      threads_(threads),
      chosen_(chosen),
      attention_bytes_(align_up(ops.attention_scratch(job.of(0, nullptr, nullptr), job.heads))),
      missing_(static_cast<std::size_t>(kItemsPerThread * threads)) {}

std::int64_t ChooseStep::chunks(std::int64_t token) const {
    if (blocks(token) <= choice_.count) return 1;
    const Span& span = job_.spans[token];
    const std::int64_t end = span.first / choice_.scored() + scores(token);
    return (end + kAttentionChunk - 1) / kAttentionChunk - first_chunk(span, choice_);
}

void ChooseStep::prepare(const Sizes& sizes) {
    const std::int64_t tokens = sizes[tokens_dim_];
    for (std::int64_t i = 0; i < tokens; ++i) {
        check_span(job_.spans[i], i, sizes[history_dim_]);
        if (job_.spans[i].first % choice_.block != 0) {
            throw std::invalid_argument("spans[" + std::to_string(i) + "] starts at position " +
                                        std::to_string(job_.spans[i].first) + ", inside of a block");
        }
    }
    is_split_ = false;
    if (parts_ == nullptr || tokens >= kItemsPerThread * threads_) return;
    items_.assign(1, 0);
    places_.clear();
    std::int64_t total = 0;
    for (std::int64_t i = 0; i < tokens; ++i) {
        places_.push_back(total);
        total += scores(i);
        items_.push_back(items_.back() + chunks(i));
        missing_[i].store(chunks(i), std::memory_order_relaxed);
    }
    is_split_ = total <= longest_ && tokens < items_.back();
}

std::int64_t ChooseStep::items(const Sizes& sizes) const {
    return is_split_ ? items_.back() : sizes[tokens_dim_];
}

std::size_t ChooseStep::scratch_bytes() const {
    return attention_bytes_ + 3 * align_up(longest_ * sizeof(float));
}

ChooseStep::Room ChooseStep::room(std::byte* scratch) const {
    const std::size_t list = align_up(longest_ * sizeof(float));
    std::byte* first = scratch + attention_bytes_;
    return {scratch, reinterpret_cast<std::int32_t*>(first), reinterpret_cast<float*>(first + list),
            reinterpret_cast<float*>(first + 2 * list)};
}

void ChooseStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const {
    const Room own = room(scratch);
    for (std::int64_t i = begin; i < end; ++i) {
        if (is_split_) {
            run_chunk(i, own);
        } else {
            score(i, 0, chunks(i), own.scores, own);
            choose(i, own.scores, own.copy);
        }
    }
}

void ChooseStep::run_chunk(std::int64_t item, const Room& room) const {
    const auto token = std::upper_bound(items_.begin(), items_.end(), item) - items_.begin() - 1;
    const std::int64_t chunk = item - items_[token];
    score(token, chunk, chunk + 1, parts_ + places_[token], room);
    if (missing_[token].fetch_sub(1, std::memory_order_acq_rel) == 1) {
        choose(token, parts_ + places_[token], room.copy);
    }
}

// Computes the scores of the chunks [begin, end), unless all blocks are chosen.
void ChooseStep::score(std::int64_t token, std::int64_t begin, std::int64_t end, float* scores,
                       const Room& room) const {
    if (blocks(token) <= choice_.count) return;
    const std::int64_t count = this->scores(token), block = choice_.scored();
    const std::int32_t* cells = job_.cells + job_.spans[token].begin;
    if (block > 1) {
        for (std::int64_t i = 0; i < count; ++i) room.cells[i] = cells[i * block + block - 1];
        cells = room.cells;
    }
    const Span span{0, static_cast<std::int32_t>(count),
                    static_cast<std::int32_t>(job_.spans[token].first / block)};
    const float least = choice_.local > 0 ? -std::numeric_limits<float>::infinity() : 0.0f;
    const Attention heads = job_.of(token, cells, &span);
    const float* weights = job_.weights == nullptr ? nullptr : job_.weights + token * job_.heads;
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
        ops_.index_scores(heads, weights, least, chunk, scores, room.attention);
    }
}

// Replaces the scores of positions by those of their blocks.
void ChooseStep::pool(std::int64_t token, float* scores) const {
    const std::int64_t length = blocks(token), count = seen(token), block = choice_.block;
    for (std::int64_t i = 0; i < length; ++i) {
        float* end = scores + std::min((i + 1) * block, count);
        scores[i] = *std::max_element(scores + i * block, end);
    }
    std::fill(scores + std::max<std::int64_t>(length - choice_.local, 0), scores + length,
              std::numeric_limits<float>::infinity());
}

void ChooseStep::choose(std::int64_t token, float* scores, float* copy) const {
    const std::int32_t* cells = job_.cells + job_.spans[token].begin;
    const std::int32_t* end = cells + seen(token);
    std::int32_t* y = chosen_ + token * choice_.width();
    std::int32_t* last = y + choice_.width();
    const std::int64_t length = blocks(token), count = choice_.count, block = choice_.block;
    if (length <= count) {
        std::fill(std::copy(cells, end, y), last, 0);
        return;
    }
    for (std::int64_t i = 0; i < this->scores(token); ++i) {
        if (std::isnan(scores[i])) scores[i] = -std::numeric_limits<float>::infinity();
    }
    if (choice_.local > 0) pool(token, scores);
    std::copy_n(scores, length, copy);
    std::nth_element(copy, copy + count - 1, copy + length, std::greater<>());
    const float lowest = copy[count - 1];
    const auto above = std::count_if(scores, scores + length, [=](float score) { return score > lowest; });
    std::int64_t equal = count - above;
    for (std::int64_t i = 0; i < length; ++i) {
        if (scores[i] > lowest || (scores[i] == lowest && equal-- > 0)) {
            y = std::copy(cells + i * block, std::min(cells + (i + 1) * block, end), y);
        }
    }
    std::fill(std::copy(std::min(cells + length * block, end), end, y), last, 0);
}

ChosenSpansStep::ChosenSpansStep(int tokens_dim, const Span* spans, KeyChoice choice, std::int64_t max_tokens,
                                 std::shared_ptr<Tiles> tiles)
    : tokens_dim_(tokens_dim), spans_(spans), choice_(choice), tiles_(std::move(tiles)) {
    tiles_->chosen.resize(max_tokens);
}

void ChosenSpansStep::prepare(const Sizes& sizes) {
    for (std::int64_t i = 0; i < sizes[tokens_dim_]; ++i) {
        const auto begin = static_cast<std::int32_t>(i * choice_.width());
        const std::int64_t chosen = choice_.chosen(spans_[i].end - spans_[i].begin);
        tiles_->chosen[i] = {begin, begin + static_cast<std::int32_t>(chosen), 0};
    }
}

}  // namespace chaski
