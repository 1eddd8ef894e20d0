#include "thread_pool.h"

#include <chrono>

namespace chaski {

namespace {

// Between two tokens the caller samples and speaks to its client for some 0.1 ms. A worker that sleeps at
// once would pay for its wake-up at every token; one that never sleeps would burn an idle core.
constexpr auto kSpinTime = std::chrono::microseconds(300);

void wait_for_change(const std::atomic<std::uint32_t>& value, std::uint32_t old) {
    auto deadline = std::chrono::steady_clock::now() + kSpinTime;
    while (std::chrono::steady_clock::now() < deadline) {
        for (int i = 0; i < 64; ++i) {
            if (value.load(std::memory_order_acquire) != old) return;
            relax();
        }
    }
    value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(threads < 1 ? 1 : threads) {
    for (int thread = 1; thread < threads_; ++thread) {
        workers_.emplace_back([this, thread] { work(thread); });
    }
}

ThreadPool::~ThreadPool() {
    stopping_.store(true);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::launch(Function function, const void* context) {
    wait();
    function_ = function;
    context_ = context;
    is_launched_ = true;
    running_.store(threads_ - 1, std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
}

void ThreadPool::wait() {
    if (!is_launched_) return;
    is_launched_ = false;
    function_(context_, 0);
    spin_until([this] { return running_.load(std::memory_order_acquire) == 0; });
}

void ThreadPool::work(int thread) {
    std::uint32_t seen = 0;
    for (;;) {
        wait_for_change(epoch_, seen);
        seen = epoch_.load(std::memory_order_acquire);
        if (stopping_.load()) return;
        function_(context_, thread);
        running_.fetch_sub(1, std::memory_order_acq_rel);
    }
}

}  // namespace chaski
