#include "plan.h"

#include <algorithm>
#include <stdexcept>

namespace chaski {

Plan::Plan(std::shared_ptr<ThreadPool> pool, std::size_t arena_bytes, std::vector<std::string> dim_names,
           Sizes maxima)
    : pool_(std::move(pool)),
      arena_(arena_bytes),
      dim_names_(std::move(dim_names)),
      maxima_(std::move(maxima)) {
    if (dim_names_.size() != maxima_.size()) throw std::invalid_argument("plan: one maximum per dimension");
    arena_.touch();
}

std::byte* Plan::checked(std::size_t offset, std::size_t bytes) const {
    if (offset % kAlignment != 0 || offset > arena_.size() || bytes > arena_.size() - offset) {
        throw std::out_of_range("plan: buffer at " + std::to_string(offset) + " of " + std::to_string(bytes) +
                                " bytes is outside the arena of " + std::to_string(arena_.size()));
    }
    return arena_.data() + offset;
}

void Plan::add(std::unique_ptr<Step> step, bool after_barrier) {
    if (scratch_ != nullptr) throw std::logic_error("plan: already finished");
    scratch_bytes_ = std::max(scratch_bytes_, align_up(step->scratch_bytes(), 4096));
    auto entry = std::make_unique<Entry>();
    entry->step = std::move(step);
    entry->after_barrier = after_barrier;
    entries_.push_back(std::move(entry));
}

void Plan::finish() {
    scratch_ = std::make_unique<Region>(scratch_bytes_ * pool_->threads());
    scratch_->touch();
}

void Plan::run(const Sizes& sizes) {
    if (scratch_ == nullptr) throw std::logic_error("plan: not finished");
    if (sizes.size() != maxima_.size()) throw std::invalid_argument("plan: one size per dimension");
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        if (sizes[i] < 0 || sizes[i] > maxima_[i]) {
            throw std::invalid_argument("plan: " + dim_names_[i] + " = " + std::to_string(sizes[i]) +
                                        " is not between 0 and " + std::to_string(maxima_[i]));
        }
    }
    for (auto& entry : entries_) {
        entry->step->prepare(sizes);
        entry->items = entry->step->items(sizes);
        entry->grain = std::max<std::int64_t>(1, entry->step->grain(sizes, pool_->threads()));
        entry->next.store(0, std::memory_order_relaxed);
    }
    pool_->run([&](int thread) { work(sizes, thread); });
}

void Plan::work(const Sizes& sizes, int thread) {
    std::byte* scratch = scratch_->data() + scratch_bytes_ * thread;
    for (auto& entry : entries_) {
        if (entry->after_barrier) pool_->barrier().wait();
        for (;;) {
            std::int64_t begin = entry->next.fetch_add(entry->grain, std::memory_order_relaxed);
            if (begin >= entry->items) break;
            entry->step->run(sizes, begin, std::min(begin + entry->grain, entry->items), scratch);
        }
    }
}

}  // namespace chaski
