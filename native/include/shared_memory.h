// Memory that several processes read and one process fills.
//
// It is an unnamed file (memfd), which the system frees with its last user. The system uses huge pages for
// such files only if an administrator enables it, or if the process requests each one (MADV_COLLAPSE, Linux
// 6.1). A request replaces an existing page with a huge one, and takes as long as clearing a huge page.
#pragma once

#include <atomic>

#include "memory.h"
#include "thread_pool.h"

namespace chaski {

// True if this system gives huge pages to shared memory. The first call tries it.
bool can_share_huge_pages();

// A part of shared memory, mapped for writing: bytes begin..end-1 with the rest of their huge pages.
class SharedWriting {
   public:
    SharedWriting(int descriptor, std::size_t begin, std::size_t end);  // throws std::bad_alloc

    // The address of the byte at `place` of the whole memory.
    std::byte* at(std::size_t place) const { return region_.data() + (place - begin_); }

    // Allocates all pages, huge ones if available; no write to them can fail afterwards. Existing pages keep
    // their content. Throws std::bad_alloc.
    void allocate(ThreadPool& pool);

   private:
    int descriptor_;
    std::size_t begin_;
    Region region_;
};

}  // namespace chaski
