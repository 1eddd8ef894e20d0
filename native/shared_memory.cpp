#include "shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#ifdef __linux__
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#endif

namespace chaski {

namespace {

#ifdef __linux__
// Makes the page at `offset` of a file that is mapped at `address` huge; returns 0 or errno. It first
// allocates the small page at the beginning, because only an existing page can be replaced.
int take_huge_page(int descriptor, std::byte* address, std::size_t offset) {
    if (fallocate(descriptor, 0, static_cast<off_t>(offset), 4096) != 0) return errno;
    return madvise(address, kHugePage, MADV_COLLAPSE) == 0 ? 0 : errno;
}

// Small pages suffice if no huge page is free.
bool take_page(int descriptor, std::byte* address, std::size_t offset) {
    return take_huge_page(descriptor, address, offset) == 0 ||
           fallocate(descriptor, 0, static_cast<off_t>(offset), kHugePage) == 0;
}

bool try_huge_page() {
    const int descriptor = memfd_create("chaski-trial", MFD_CLOEXEC);
    if (descriptor < 0) return false;
    int error = EINVAL;
    try {
        const SharedWriting memory(descriptor, 0, kHugePage);
        if (ftruncate(descriptor, kHugePage) == 0) error = take_huge_page(descriptor, memory.at(0), 0);
    } catch (const std::bad_alloc&) {
    }
    close(descriptor);
    return error == 0 || error == ENOMEM || error == EAGAIN || error == EBUSY;  // perhaps no page is free now
}
#else
bool take_page(int, std::byte*, std::size_t) { return true; }

bool try_huge_page() { return false; }
#endif

}  // namespace

bool can_share_huge_pages() {
    static const bool is_possible = try_huge_page();
    return is_possible;
}

SharedWriting::SharedWriting(int descriptor, std::size_t begin, std::size_t end)
    : descriptor_(descriptor),
      begin_(begin / kHugePage * kHugePage),
      region_(align_up(end, kHugePage) - begin_, descriptor, begin_, Access::kReadAndWrite) {}

void SharedWriting::allocate(ThreadPool& pool) {
    const std::size_t end = begin_ + region_.size();
    std::atomic<std::size_t> next{begin_};
    std::atomic<bool> is_full{false};
    pool.run([&](int) {
        for (std::size_t place = next.fetch_add(kHugePage); place < end && !is_full.load();
             place = next.fetch_add(kHugePage)) {
            if (!take_page(descriptor_, at(place), place)) is_full.store(true);
        }
    });
    if (is_full.load()) throw std::bad_alloc();
}

}  // namespace chaski
