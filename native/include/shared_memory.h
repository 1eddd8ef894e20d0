// Memory that several processes read, and the one that fills it.
//
// It is a file without a name (memfd), which the system frees with its last user. Pages of such files are
// huge only where an administrator says so, unless one asks for each (MADV_COLLAPSE, Linux 6.1): a page that
// has anything in it is replaced by a huge one, for the time that clearing a huge page takes anyway.
#pragma once

#include <atomic>

#include "memory.h"
#include "thread_pool.h"

namespace chaski {

// True if this system gives huge pages to shared memory. The first call tries.
bool can_share_huge_pages();

// A part of shared memory, mapped to be filled: bytes begin..end-1 with the rest of their huge pages.
class SharedWriting {
   public:
    SharedWriting(int descriptor, std::size_t begin, std::size_t end);  // throws std::bad_alloc

    // The address of the byte at `place` of the whole memory.
    std::byte* at(std::size_t place) const { return region_.data() + (place - begin_); }

    // Takes all pages, huge ones where there are any; no write to them can fail afterwards. Existing pages
    // keep their content. Throws std::bad_alloc.
    void allocate(ThreadPool& pool);

   private:
    int descriptor_;
    std::size_t begin_;
    Region region_;
};

}  // namespace chaski
