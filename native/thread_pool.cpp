#include "thread_pool.h"

#include <algorithm>
#include <chrono>

#include "float_environment.h"

namespace chaski {

namespace {

// Between two tokens the caller samples and serves its client for about 0.1 ms. A worker that sleeps at once
// would pay for its wake-up at every token; a worker that never sleeps would waste an idle core.
constexpr auto kSpinTime = std::chrono::microseconds(300);

// Much longer than the lag between running threads in decode, and much shorter than the time slice for which
// another process may hold a thread's core.
constexpr auto kPatience = std::chrono::microseconds(50);

}  // namespace

ThreadPool::ThreadPool(int threads)
    : threads_(std::max(threads, 1)),
      is_crowded_(static_cast<unsigned>(threads_) > std::thread::hardware_concurrency()),
      members_(threads_),
      cores_(threads_) {
    try {
        for (int thread = 1; thread < threads_; ++thread) {
            workers_.emplace_back([this, thread] { work(thread); });
        }
    } catch (...) {
        stop();
        throw;
    }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
    stopping_.store(true);
    job_.fetch_add(2, std::memory_order_release);
    job_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::launch(Function function, const void* context) {
    wait();
    function_ = function;
    context_ = context;
    members_[0].job = job_.fetch_add(1) + 1;
    job_.notify_all();
}

void ThreadPool::wait() {
    if (job_.load(std::memory_order_relaxed) % 2 == 0) return;
    Member& caller = members_[0];
    cores_.enter(0);
    enter(caller);
    {
        const UsualFloats usual;
        function_(context_, 0);
    }
    caller.state.store(State::kIdle, std::memory_order_release);
    job_.fetch_add(1);
    for (const Member& member : members_) {
        for (Wait wait(*this, 0); member.state.load() == State::kWorking;) wait.pause();
    }
}

void ThreadPool::gather() {
    wait();
    for (const Member& member : members_) {
        for (Wait wait(*this, 0); member.state.load(std::memory_order_acquire) != State::kIdle;) wait.pause();
    }
}

bool ThreadPool::enter(Member& member) {
    // Either this thread sees that the job is complete, or the thread that completes it sees that this thread
    // works.
    member.state.store(State::kWorking);
    return job_.load() == member.job;
}

void ThreadPool::work(int thread) {
    const UsualFloats usual;  // a thread inherits the mode of its creator
    Member& member = members_[thread];
    cores_.enter(thread);
    for (;;) {
        wait_for_job(thread, member.job);
        member.job = job_.load(std::memory_order_acquire);
        if (stopping_.load()) return;
        if (member.job % 2 == 0) continue;
        if (enter(member)) function_(context_, thread);
        member.state.store(State::kIdle, std::memory_order_release);
    }
}

void ThreadPool::wait_for_job(int thread, std::uint32_t last) {
    const auto is_there = [&](std::chrono::microseconds time) {
        const auto end = std::chrono::steady_clock::now() + time;
        while (std::chrono::steady_clock::now() < end) {
            for (int i = 0; i < 64; ++i) {
                if (job_.load(std::memory_order_acquire) != last) return true;
                relax();
            }
        }
        return false;
    };
    if (is_there(kSpinTime / 2)) return;
    relieve(thread);
    if (is_there(kSpinTime / 2)) return;
    job_.wait(last, std::memory_order_acquire);
}

void ThreadPool::Wait::look_around() {
    const auto now = Clock::now();
    if (last_ == Clock::time_point{}) last_ = now;
    if (pool_.is_crowded_) std::this_thread::yield();
    if (now < last_ + kPatience) return;
    pool_.relieve(thread_);
    last_ = Clock::now();
}

// A working thread without a core delays all others, and so does the caller, which has to begin the next job.
// This thread only waits, so its core is more useful to them.
void ThreadPool::relieve(int thread) {
    if (is_relieving_.exchange(true)) return;
    for (int other = 0; other < threads_; ++other) {
        const bool is_needed = other == 0 || members_[other].state.load() == State::kWorking;
        if (other != thread && is_needed && cores_.stands_still(other)) {
            cores_.make_room(thread, other);
            break;
        }
    }
    is_relieving_.store(false);
    cores_.leave(thread);
}

}  // namespace chaski
