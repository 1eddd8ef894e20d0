#include "choose.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace chaski {

ChooseStep::ChooseStep(const Ops& ops, int tokens_dim, int history_dim, const Indexer& job,
                       std::int64_t count, std::int64_t longest, float* parts, int threads,
                       std::int32_t* chosen)
    : ops_(ops),
      tokens_dim_(tokens_dim),
      history_dim_(history_dim),
      job_(job),
      count_(count),
      longest_(longest),
      parts_(parts),
      threads_(threads),
      chosen_(chosen),
      attention_bytes_(align_up(ops.attention_scratch(job.heads, job.heads.heads))),
      missing_(static_cast<std::size_t>(kItemsPerThread * threads)) {}

std::int64_t ChooseStep::chunks(std::int64_t token) const {
    if (seen(token) <= count_) return 1;
    const Span& span = job_.heads.spans[token];
    const std::int64_t end = std::int64_t{span.first} + seen(token);
    return (end + kAttentionChunk - 1) / kAttentionChunk - span.first / kAttentionChunk;
}

void ChooseStep::prepare(const Sizes& sizes) {
    const std::int64_t tokens = sizes[tokens_dim_];
    for (std::int64_t i = 0; i < tokens; ++i) check_span(job_.heads.spans[i], i, sizes[history_dim_]);
    is_split_ = false;
    if (parts_ == nullptr || tokens >= kItemsPerThread * threads_) return;
    items_.assign(1, 0);
    places_.clear();
    std::int64_t total = 0;
    for (std::int64_t i = 0; i < tokens; ++i) {
        places_.push_back(total);
        total += seen(i);
        items_.push_back(items_.back() + chunks(i));
        missing_[i].store(chunks(i), std::memory_order_relaxed);
    }
    is_split_ = total <= longest_ && tokens < items_.back();
}

std::int64_t ChooseStep::items(const Sizes& sizes) const {
    return is_split_ ? items_.back() : sizes[tokens_dim_];
}

std::size_t ChooseStep::scratch_bytes() const {
    return attention_bytes_ + 2 * align_up(longest_ * sizeof(float));
}

void ChooseStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const {
    auto* scores = reinterpret_cast<float*>(scratch + attention_bytes_);
    auto* room = scores + align_up(longest_ * sizeof(float)) / sizeof(float);
    for (std::int64_t i = begin; i < end; ++i) {
        if (is_split_) {
            run_chunk(i, scratch);
            continue;
        }
        if (seen(i) > count_) {
            for (std::int64_t chunk = 0; chunk < chunks(i); ++chunk) {
                ops_.index_scores(job_, i, chunk, scores, scratch);
            }
        }
        choose(i, scores, room);
    }
}

void ChooseStep::run_chunk(std::int64_t item, std::byte* scratch) const {
    const auto token = std::upper_bound(items_.begin(), items_.end(), item) - items_.begin() - 1;
    float* scores = parts_ + places_[token];
    if (seen(token) > count_) ops_.index_scores(job_, token, item - items_[token], scores, scratch);
    if (missing_[token].fetch_sub(1, std::memory_order_acq_rel) == 1) {
        choose(token, scores, reinterpret_cast<float*>(scratch + attention_bytes_));
    }
}

void ChooseStep::choose(std::int64_t token, float* scores, float* room) const {
    const std::int32_t* cells = job_.heads.cells + job_.heads.spans[token].begin;
    std::int32_t* y = chosen_ + token * count_;
    const std::int64_t length = seen(token);
    if (length <= count_) {
        std::copy_n(cells, length, y);
        std::fill(y + length, y + count_, 0);
        return;
    }
    for (std::int64_t i = 0; i < length; ++i) {
        if (std::isnan(scores[i])) scores[i] = -std::numeric_limits<float>::infinity();
    }
    std::copy_n(scores, length, room);
    std::nth_element(room, room + count_ - 1, room + length, std::greater<>());
    const float lowest = room[count_ - 1];
    const auto above = std::count_if(scores, scores + length, [=](float score) { return score > lowest; });
    std::int64_t equal = count_ - above;
    for (std::int64_t i = 0; i < length; ++i) {
        if (scores[i] > lowest || (scores[i] == lowest && equal-- > 0)) *y++ = cells[i];
    }
}

ChosenSpansStep::ChosenSpansStep(int tokens_dim, const Span* spans, std::int64_t count,
                                 std::int64_t max_tokens, std::shared_ptr<Tiles> tiles)
    : tokens_dim_(tokens_dim), spans_(spans), count_(count), tiles_(std::move(tiles)) {
    tiles_->chosen.resize(max_tokens);
}

void ChosenSpansStep::prepare(const Sizes& sizes) {
    for (std::int64_t i = 0; i < sizes[tokens_dim_]; ++i) {
        const auto begin = static_cast<std::int32_t>(i * count_);
        const auto seen = std::min<std::int64_t>(count_, spans_[i].end - spans_[i].begin);
        tiles_->chosen[i] = {begin, begin + static_cast<std::int32_t>(seen), 0};
    }
}

}  // namespace chaski
