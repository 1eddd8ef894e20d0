// Large blocks of zeroed memory, straight from the operating system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace chaski {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment = kAlignment) {
    return (bytes + alignment - 1) / alignment * alignment;
}

// Spreads the pages of later large regions over these memory nodes in turns, so that all threads together get
// the bandwidth of all nodes. Without nodes, or if the user has set a policy for the process, or if the
// system refuses, the system places the pages. Call it on the main thread.
void spread_memory(const std::vector<int>& nodes);

enum class Access { kRead, kReadAndWrite };

// Owns a mapping. Pages are huge where the system allows it: weights are streamed once per token, and
// with 4 KB pages the address translation alone costs several percent.
class Region {
   public:
    // Private memory of this process.
    explicit Region(std::size_t bytes);  // throws std::bad_alloc
    // A part of an unnamed file, which other processes may map too (shared_memory.h). Forks do not inherit
    // writable mappings. Throws std::bad_alloc.
    Region(std::size_t bytes, int descriptor, std::size_t offset, Access access);
    ~Region();
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    std::byte* data() const { return data_; }
    std::size_t size() const { return size_; }

    // Makes every page resident, so that no later write can fail or grow the process. Changes no content,
    // even while other threads write.
    void touch();

   private:
    Region(std::size_t bytes, int protection, int flags, int descriptor, std::size_t offset);

    std::byte* data_;
    std::size_t size_;
    std::size_t mapped_;
};

// Gives the whole pages within this memory back to the system; they are zero afterwards.
void give_back(std::byte* memory, std::size_t bytes);

}  // namespace chaski
