#include "memory.h"

#include <sys/mman.h>

#include <new>

namespace chaski {

namespace {
constexpr std::size_t kHugePage = std::size_t{2} << 20;
}

Region::Region(std::size_t bytes) : size_(bytes) {
    // Huge pages need an aligned start: map one page more than needed, and give the ends back.
    bool huge = bytes >= kHugePage;
    mapped_ = align_up(bytes == 0 ? 1 : bytes, huge ? kHugePage : 4096);
    std::size_t slack = huge ? kHugePage : 0;
    void* base = mmap(nullptr, mapped_ + slack, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    auto start = reinterpret_cast<std::uintptr_t>(base);
    auto aligned = huge ? align_up(start, kHugePage) : start;
    if (aligned > start) munmap(base, aligned - start);
    if (std::size_t tail = start + slack - aligned; tail > 0) {
        munmap(reinterpret_cast<void*>(aligned + mapped_), tail);
    }
    data_ = reinterpret_cast<std::byte*>(aligned);
#ifdef MADV_HUGEPAGE
    if (huge) madvise(data_, mapped_, MADV_HUGEPAGE);
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
