#include "memory.h"

#include <sys/mman.h>

#if defined(__linux__)
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <array>
#include <climits>
#include <new>

namespace chaski {

namespace {

constexpr std::size_t kPage = 4096;

// Reserves `bytes` bytes of addresses without memory.
std::byte* reserve(std::size_t bytes, std::size_t alignment) {
    const std::size_t slack = alignment > kPage ? alignment : 0;
    void* base = mmap(nullptr, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    const auto start = reinterpret_cast<std::uintptr_t>(base), aligned = align_up(start, alignment);
    if (aligned > start) munmap(base, aligned - start);
    if (const std::size_t tail = start + slack - aligned; tail > 0) {
        munmap(reinterpret_cast<void*>(aligned + bytes), tail);
    }
    return reinterpret_cast<std::byte*>(aligned);
}

// A bit for each memory node.
constexpr std::size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
constexpr std::size_t kMostNodes = 1024;
std::array<unsigned long, kMostNodes / kWordBits> spread_over{};
bool is_spread = false;

void spread(void* data, std::size_t bytes) {
#if defined(__linux__)
    if (is_spread) syscall(SYS_mbind, data, bytes, MPOL_INTERLEAVE, spread_over.data(), kMostNodes + 1, 0);
#else
    static_cast<void>(data), static_cast<void>(bytes);
#endif
}

}  // namespace

void spread_memory(const std::vector<int>& nodes) {
    spread_over.fill(0);
    is_spread = false;
#if defined(__linux__)
    int policy = MPOL_DEFAULT;
    if (syscall(SYS_get_mempolicy, &policy, nullptr, 0, nullptr, 0) != 0 || policy != MPOL_DEFAULT) return;
    for (const int node : nodes) {
        if (node < 0 || static_cast<std::size_t>(node) >= kMostNodes) continue;
        spread_over[node / kWordBits] |= 1ul << (node % kWordBits);
        is_spread = true;
    }
#else
    static_cast<void>(nodes);
#endif
}

Region::Region(std::size_t bytes, int protection, int flags, int descriptor, std::size_t offset)
    : size_(bytes) {
    // Huge pages need an aligned start. Private memory ends with small ones: keys and values of a layer often
    // have 2 to 4 MB, of which a last huge page would waste up to half.
    const std::size_t alignment = bytes >= kHugePage ? kHugePage : kPage;
    mapped_ = align_up(bytes == 0 ? 1 : bytes, descriptor < 0 ? kPage : alignment);
    data_ = reserve(mapped_, alignment);
    const auto place = static_cast<off_t>(offset);
    if (mmap(data_, mapped_, protection, flags | MAP_FIXED, descriptor, place) == MAP_FAILED) {
        munmap(data_, mapped_);
        throw std::bad_alloc();
    }
    if (bytes >= kHugePage) spread(data_, mapped_);
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
    for (std::size_t offset = 0; offset < mapped_; offset += kPage) {
        // Atomic, since other threads may write the same memory.
        __atomic_fetch_or(reinterpret_cast<unsigned char*>(data_ + offset), 0, __ATOMIC_RELAXED);
    }
}

void give_back(std::byte* memory, std::size_t bytes) {
    const auto start = reinterpret_cast<std::uintptr_t>(memory);
    const std::uintptr_t begin = align_up(start, kPage), end = (start + bytes) / kPage * kPage;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace chaski
