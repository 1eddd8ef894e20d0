#include "machine_limits.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "memory.h"

namespace chaski {

// Seconds of a job on all threads; the shortest of `repeats` runs.
template <class Job>
static double shortest(ThreadPool& pool, int repeats, const Job& job) {
    using Clock = std::chrono::steady_clock;
    double best = 1e9;
    for (int i = 0; i < repeats; ++i) {
        const auto started = Clock::now();
        pool.run(job);
        best = std::min(best, std::chrono::duration<double>(Clock::now() - started).count());
    }
    return best;
}

double multiply_add_rate(ThreadPool& pool, Peaks::Loop loop) {
    constexpr int kRepeats = 6;
    constexpr double kSeconds = 0.01;
    std::int64_t steps = 1000, each = 0;
    double seconds = 0;
    // The number of steps that takes long enough to be timed, on the caller alone.
    for (; seconds < kSeconds; steps *= 2) {
        const auto started = std::chrono::steady_clock::now();
        each = loop(steps);
        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    }
    const double work = static_cast<double>(steps * each) * pool.threads();
    return work / shortest(pool, kRepeats, [&](int) { loop(steps); });
}

double read_bandwidth(ThreadPool& pool, const Peaks& peaks, std::int64_t bytes) {
    constexpr int kRepeats = 5;
    constexpr std::int64_t kPiece = 1024;
    const std::int64_t share = bytes / pool.threads() / kPiece * kPiece;
    Region memory(static_cast<std::size_t>(share * pool.threads()));
    std::memset(memory.data(), 1, memory.size());  // unwritten pages are all the same page of zeros
    std::atomic<std::uint8_t> seen{0};
    const double seconds = shortest(
        pool, kRepeats, [&](int thread) { seen |= peaks.read(memory.data() + thread * share, share); });
    return static_cast<double>(memory.size()) / seconds;
}

}  // namespace chaski
