#include "read_ahead.h"

#include <poll.h>

#include <algorithm>
#include <atomic>

namespace chaski {

namespace {

// Bytes that a thread takes at once. It reads them in a few microseconds.
constexpr std::int64_t kPiece = 64 << 10;

bool has_input(int descriptor) {
    pollfd watched{descriptor, POLLIN, 0};
    return poll(&watched, 1, 0) != 0;
}

// Reads one byte of each line from `begin` to `end` of all stretches. Prefetch instructions do not keep
// memory busy: on a Zen 5, reading 2 MB was 1.3 times as fast after them, and 2.1 times after this.
void read_lines(const std::vector<std::span<const std::byte>>& stretches, std::int64_t begin,
                std::int64_t end) {
    constexpr std::int64_t kLine = 64;
    for (const auto& stretch : stretches) {
        const std::int64_t size = std::ssize(stretch);
        const volatile std::byte* bytes = stretch.data();
        for (std::int64_t at = std::max<std::int64_t>(begin, 0); at < std::min(end, size); at += kLine) {
            static_cast<void>(bytes[at]);
        }
        begin -= size;
        end -= size;
        if (end <= 0) return;
    }
}

}  // namespace

std::int64_t read_stretches_ahead(ThreadPool& pool, const std::vector<std::span<const std::byte>>& stretches,
                                  std::int64_t begin, std::int64_t end, int descriptor) {
    if (begin >= end || has_input(descriptor)) return begin;
    std::atomic<std::int64_t> next{begin};
    std::atomic<bool> is_over{false};
    const auto read = [&](int thread) {
        while (!is_over.load(std::memory_order_relaxed)) {
            const std::int64_t from = next.fetch_add(kPiece, std::memory_order_relaxed);
            if (from >= end) return;
            read_lines(stretches, from, std::min(from + kPiece, end));
            if (thread == 0 && has_input(descriptor)) is_over.store(true, std::memory_order_relaxed);
        }
    };
    using Read = decltype(read);
    pool.launch([](const void* context, int thread) { (*static_cast<const Read*>(context))(thread); }, &read);
    pool.wait();
    return std::min(next.load(), end);
}

}  // namespace chaski
