#include "plan.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "read_ahead.h"

namespace chaski {

std::int64_t steady_nanoseconds() {
    const auto time = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

Plan::Plan(std::shared_ptr<ThreadPool> pool, std::size_t arena_bytes, std::vector<std::string> dim_names,
           Sizes maxima, std::optional<int> cut_for)
    : pool_(std::move(pool)),
      arena_(arena_bytes),
      dim_names_(std::move(dim_names)),
      maxima_(std::move(maxima)),
      threads_(cut_for.value_or(pool_->threads())) {
    if (threads_ < 1) throw std::invalid_argument("plan: work is cut for one thread at least");
    if (dim_names_.size() != maxima_.size()) throw std::invalid_argument("plan: one maximum per dimension");
}

std::byte* Plan::checked(std::size_t offset, std::size_t bytes) const {
    if (offset % kAlignment != 0 || offset > arena_.size() || bytes > arena_.size() - offset) {
        throw std::out_of_range("plan: buffer at " + std::to_string(offset) + " of " + std::to_string(bytes) +
                                " bytes is outside the arena of " + std::to_string(arena_.size()));
    }
    return arena_.data() + offset;
}

void Plan::add(std::unique_ptr<Step> step) {
    if (scratch_ != nullptr) throw std::logic_error("plan: already finished");
    scratch_bytes_ = std::max(scratch_bytes_, align_up(step->scratch_bytes(), 4096));
    if (phases_.empty()) barrier();
    auto entry = std::make_unique<Entry>();
    entry->step = std::move(step);
    entry->phase = phases_.size() - 1;
    entries_.push_back(std::move(entry));
}

void Plan::barrier() { phases_.push_back(std::make_unique<Phase>()); }

void Plan::finish() { scratch_ = std::make_unique<Region>(scratch_bytes_ * pool_->threads()); }

void Plan::touch() {
    arena_.touch();
    scratch_->touch();
}

Plan::~Plan() { pool_->gather(); }

void Plan::launch(const Sizes& sizes) {
    if (scratch_ == nullptr) throw std::logic_error("plan: not finished");
    if (sizes.size() != maxima_.size()) throw std::invalid_argument("plan: one size per dimension");
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        if (sizes[i] < 0 || sizes[i] > maxima_[i]) {
            throw std::invalid_argument("plan: " + dim_names_[i] + " = " + std::to_string(sizes[i]) +
                                        " is not between 0 and " + std::to_string(maxima_[i]));
        }
    }
    pool_->wait();
    sizes_ = sizes;
    read_ahead_ = 0;
    for (Trace& trace : traces_) trace.pieces.clear();
    for (auto& phase : phases_) phase->items_left.store(0, std::memory_order_relaxed);
    for (auto& entry : entries_) {
        entry->step->prepare(sizes_);
        entry->items = entry->step->items(sizes_);
        entry->next.store(0, std::memory_order_relaxed);
        phases_[entry->phase]->items_left.fetch_add(entry->items, std::memory_order_relaxed);
    }
    pool_->launch(
        [](const void* plan, int thread) { static_cast<Plan*>(const_cast<void*>(plan))->work(thread); },
        this);
}

void Plan::wait() { pool_->wait(); }

std::optional<std::int64_t> Plan::read_ahead(int descriptor, std::int64_t most) {
    std::vector<std::span<const std::byte>> stretches;
    std::int64_t bytes = 0;
    for (const auto& entry : entries_) {
        stretches.push_back(entry->step->weights());
        bytes += std::ssize(stretches.back());
    }
    const std::int64_t end = std::min(bytes, most);
    read_ahead_ = read_stretches_ahead(*pool_, stretches, read_ahead_, end, descriptor);
    return read_ahead_ < end ? std::nullopt : std::optional(read_ahead_);
}

std::vector<Piece> Plan::pieces() const {
    std::vector<Piece> all;
    for (const Trace& trace : traces_) all.insert(all.end(), trace.pieces.begin(), trace.pieces.end());
    return all;
}

void Plan::work(int thread) {
    std::byte* scratch = scratch_->data() + scratch_bytes_ * thread;
    std::vector<Piece>* trace = traces_.empty() ? nullptr : &traces_[thread].pieces;
    std::size_t current = 0;
    for (std::size_t index = 0; index < entries_.size(); ++index) {
        const auto& entry = entries_[index];
        for (; current < entry->phase; ++current) {
            Phase& phase = *phases_[current];
            const auto is_done = [&phase] { return phase.items_left.load(std::memory_order_acquire) == 0; };
            if (!pool_->wait_for(thread, is_done)) return;
        }
        std::int64_t done = 0;
        std::int64_t begin = entry->next.load(std::memory_order_relaxed);
        while (begin < entry->items) {
            std::int64_t left = entry->items - begin;
            std::int64_t end = begin + std::min(left, entry->step->piece(sizes_, left, threads_));
            if (!entry->next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
            const std::int64_t started = trace == nullptr ? 0 : steady_nanoseconds();
            entry->step->run(sizes_, begin, end, scratch);
            if (trace != nullptr) {
                trace->push_back({thread, static_cast<std::int64_t>(index),
                                  static_cast<std::int64_t>(entry->phase), begin, end, started,
                                  steady_nanoseconds()});
            }
            done += end - begin;
            begin = entry->next.load(std::memory_order_relaxed);
        }
        if (done > 0) phases_[entry->phase]->items_left.fetch_sub(done, std::memory_order_release);
    }
}

}  // namespace chaski
