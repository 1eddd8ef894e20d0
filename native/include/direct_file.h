// A file that is read past the system's page cache, for weights that have a bounded memory of their own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory.h"

namespace chaski {

// Reads block by block, straight from the disk where the file system allows it, but bytes that the page cache
// holds from there. Any thread may read.
class DirectFile {
   public:
    static constexpr std::int64_t kBlock = 4096;
    // The longest read that fits into a huge page, wherever it begins. Into many small pages, or into two
    // huge ones, some disks read at a fraction of their rate.
    static constexpr std::int64_t kLongest = std::int64_t{kHugePage} - 2 * kBlock;

    explicit DirectFile(int descriptor);  // opens the same file again; throws std::system_error
    ~DirectFile();
    DirectFile(const DirectFile&) = delete;
    DirectFile& operator=(const DirectFile&) = delete;

    // The room for reading this many bytes: they may begin and end inside of blocks.
    static constexpr std::int64_t room_bytes(std::int64_t bytes) {
        return (bytes + 2 * kBlock - 2) / kBlock * kBlock;
    }
    // Reads bytes into `room`, which is aligned to blocks. Returns their place in it, or null with `error`
    // set: errno, or kShortened if the file ends before them.
    std::uint8_t* read(std::int64_t offset, std::int64_t bytes, std::uint8_t* room, int& error) const;

    static constexpr int kShortened = -1;

   private:
    bool is_cached(std::int64_t begin, std::int64_t bytes) const;

    int descriptor_;  // reads past the page cache if that is possible
    int cached_;      // reads through it
};

}  // namespace chaski
