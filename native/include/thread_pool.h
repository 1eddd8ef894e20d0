// A fixed team of threads that runs one job at a time. The caller is one of the threads, and may join late.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "cores.h"

namespace chaski {

// Tells the core that this loop only waits.
inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// The team calls a job on its threads as function(context, thread); the job must not throw. It is complete
// when the call on thread 0, the caller, has returned and no other thread works on it. A job does not wait
// for threads that lost their cores before they began.
class ThreadPool {
   public:
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    using Function = void (*)(const void* context, int thread);

    int threads() const { return threads_; }

    // Waits for the previous job, then starts a job on all threads except the one that calls `wait`. One
    // caller at a time. The context must live until `gather` has returned, or `wait` if the job never calls
    // `wait_for`.
    void launch(Function function, const void* context);
    // Does this thread's share of a launched job, if there is one; returns when the job is complete.
    void wait();
    // Returns when no thread uses the context of any job.
    void gather();

    // Within a job: waits until `is_done()`. Returns false if the job was completed without this thread,
    // which must then return. No thread waits for a thread that waits here.
    template <class Condition>
    bool wait_for(int thread, const Condition& is_done) {
        if (is_done()) return true;
        Member& member = members_[thread];
        member.state.store(State::kWaiting, std::memory_order_release);
        for (Wait wait(*this, thread); job_.load(std::memory_order_acquire) == member.job; wait.pause()) {
            if (is_done()) return enter(member);
        }
        return false;
    }

    // Calls a function once on each thread, with the thread's number.
    template <class Job>
    void run(const Job& job) {
        std::atomic<int> begun{0};
        const auto call = [&](int thread) {
            begun.fetch_add(1);
            job(thread);
            if (thread > 0) return;
            for (Wait wait(*this, thread); begun.load() < threads_;) wait.pause();
        };
        using Call = decltype(call);
        launch([](const void* context, int thread) { (*static_cast<const Call*>(context))(thread); }, &call);
        wait();
    }

   private:
    enum class State { kIdle, kWaiting, kWorking };
    struct alignas(64) Member {
        std::atomic<State> state{State::kIdle};
        std::uint32_t job = 0;  // the current or last job
    };

    // A waiting thread first spins, then looks for a thread that has lost its core and gives its own core to
    // it.
    class Wait {
       public:
        Wait(ThreadPool& pool, int thread) : pool_(pool), thread_(thread) {}
        void pause() {
            if (++turns_ % kTurns != 0) {
                relax();
            } else {
                look_around();
            }
        }

       private:
        using Clock = std::chrono::steady_clock;
        static constexpr int kTurns = 64;  // between two readings of the clock

        void look_around();

        ThreadPool& pool_;
        const int thread_;
        int turns_ = 0;
        Clock::time_point last_{};
    };

    void stop();
    void work(int thread);
    // Begins to work on `member.job`, unless it is complete.
    bool enter(Member& member);
    void wait_for_job(int thread, std::uint32_t last);
    void relieve(int thread);

    const int threads_;
    const bool is_crowded_;  // fewer processors than threads, so threads wait for cores
    Function function_ = nullptr;
    const void* context_ = nullptr;
    // Odd while a job is open, and then the job's number.
    alignas(64) std::atomic<std::uint32_t> job_{0};
    std::atomic<bool> stopping_{false};
    alignas(64) std::atomic<bool> is_relieving_{false};
    std::vector<Member> members_;
    Cores cores_;
    std::vector<std::thread> workers_;
};

}  // namespace chaski
