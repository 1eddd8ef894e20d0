// A fixed team of threads that runs one job at a time; the caller is one of them, and may come late.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace chaski {

// Tells the core that this is a waiting loop.
inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Waits until `is_done()`. Spins for some 50 microseconds: much longer than threads that run are ever apart
// in decode, much shorter than the time slice for which another process may hold the core of one that does
// not run. After that it gives its core away, so that the one that it waits for can have it.
template <class Condition>
void spin_until(const Condition& is_done) {
    constexpr int kSpins = 1000;
    for (int spins = 0; !is_done(); ++spins) {
        if (spins < kSpins)
            relax();
        else
            std::this_thread::yield();
    }
}

// A job is called once on every thread of the team, as function(context, thread), and must not throw.
class ThreadPool {
   public:
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    using Function = void (*)(const void* context, int thread);

    int threads() const { return threads_; }

    // Starts a job on all threads but one, which is whoever calls `wait`; waits for the job before it first.
    // One caller at a time. The context must live until `wait` has returned.
    void launch(Function function, const void* context);
    // Does this thread's share of the job that was launched, if one was; returns when all are done.
    void wait();

    // Both, for anything that can be called with a thread's number.
    template <class Job>
    void run(const Job& job) {
        launch([](const void* context, int thread) { (*static_cast<const Job*>(context))(thread); }, &job);
        wait();
    }

   private:
    void work(int thread);

    const int threads_;
    Function function_ = nullptr;
    const void* context_ = nullptr;
    bool is_launched_ = false;
    alignas(64) std::atomic<std::uint32_t> epoch_{0};
    alignas(64) std::atomic<int> running_{0};
    std::atomic<bool> stopping_{false};
    std::vector<std::thread> workers_;
};

}  // namespace chaski
