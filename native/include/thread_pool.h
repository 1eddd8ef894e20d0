// A fixed team of threads that runs one job at a time together with the caller.
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

// Some 50 microseconds of waiting: much longer than threads that run are ever apart in decode, much shorter
// than the time slice for which another process may hold the core of one that does not run.
inline constexpr int kSpins = 1000;

// Where all threads of a team wait for each other. Spins: waits are far shorter than a sleep would be.
class Barrier {
   public:
    explicit Barrier(int threads) : threads_(threads) {}

    void wait() {
        std::uint32_t generation = generation_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
            arrived_.store(0, std::memory_order_relaxed);
            generation_.fetch_add(1, std::memory_order_release);
            return;
        }
        for (int spins = 0; generation_.load(std::memory_order_acquire) == generation; ++spins) {
            // The other thread may have lost its core to another process: let it have this one.
            if (spins < kSpins)
                relax();
            else
                std::this_thread::yield();
        }
    }

   private:
    const int threads_;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<std::uint32_t> generation_{0};
};

class ThreadPool {
   public:
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return threads_; }
    Barrier& barrier() { return barrier_; }

    // Calls job(thread) once on every thread, the caller being thread 0; returns when all are done.
    // One caller at a time. Jobs must not throw.
    template <class Job>
    void run(const Job& job) {
        dispatch([](const void* context, int thread) { (*static_cast<const Job*>(context))(thread); }, &job);
    }

   private:
    using Function = void (*)(const void* context, int thread);

    void dispatch(Function function, const void* context);
    void work(int thread);

    const int threads_;
    Barrier barrier_;
    Function function_ = nullptr;
    const void* context_ = nullptr;
    alignas(64) std::atomic<std::uint32_t> epoch_{0};
    alignas(64) std::atomic<int> running_{0};
    std::atomic<bool> stopping_{false};
    std::vector<std::thread> workers_;
};

}  // namespace chaski
