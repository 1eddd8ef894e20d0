#include "memory.h"

#include <sys/mman.h>

#include <new>

namespace chaski {

namespace {

// Addresses of so many bytes that nobody else gets, with nothing behind them.
std::byte* reserve(std::size_t bytes, std::size_t alignment) {
    const std::size_t slack = alignment > 4096 ? alignment : 0;
    void* base = mmap(nullptr, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    const auto start = reinterpret_cast<std::uintptr_t>(base), aligned = align_up(start, alignment);
    if (aligned > start) munmap(base, aligned - start);
    if (const std::size_t tail = start + slack - aligned; tail > 0) {
        munmap(reinterpret_cast<void*>(aligned + bytes), tail);
    }
    return reinterpret_cast<std::byte*>(aligned);
}

}  // namespace

Region::Region(std::size_t bytes, int protection, int flags, int descriptor, std::size_t offset)
    : size_(bytes) {
    // Huge pages need an aligned start.
    const std::size_t alignment = bytes >= kHugePage ? kHugePage : 4096;
    mapped_ = align_up(bytes == 0 ? 1 : bytes, alignment);
    data_ = reserve(mapped_, alignment);
    const auto place = static_cast<off_t>(offset);
    if (mmap(data_, mapped_, protection, flags | MAP_FIXED, descriptor, place) == MAP_FAILED) {
        munmap(data_, mapped_);
        throw std::bad_alloc();
    }
}

Region::Region(std::size_t bytes)
    : Region(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) {
#ifdef MADV_HUGEPAGE
    if (bytes >= kHugePage) madvise(data_, mapped_, MADV_HUGEPAGE);
#endif
}

Region::Region(std::size_t bytes, int descriptor, std::size_t offset, Access access)
    : Region(bytes, access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED, descriptor,
             offset) {
#ifdef MADV_DONTFORK
    if (access == Access::kReadAndWrite) madvise(data_, mapped_, MADV_DONTFORK);
#endif
}

Region::~Region() { munmap(data_, mapped_); }

void Region::touch() {
    for (std::size_t offset = 0; offset < mapped_; offset += 4096) {
        // Atomic, since others may be writing there.
        __atomic_fetch_or(reinterpret_cast<unsigned char*>(data_ + offset), 0, __ATOMIC_RELAXED);
    }
}

}  // namespace chaski
