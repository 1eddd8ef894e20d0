#include "direct_file.h"

#include <fcntl.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include <cerrno>
#include <string>
#include <system_error>

namespace chaski {

namespace {

// A second description of the file, because the flag would change the reads of all who share the first one.
int opened_again(int descriptor) {
#if defined(__linux__) && defined(O_DIRECT)
    const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
    const int direct = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (direct >= 0) {
        // Some file systems accept the flag and then refuse every read.
        alignas(DirectFile::kBlock) static thread_local std::uint8_t block[DirectFile::kBlock];
        if (pread(direct, block, sizeof(block), 0) >= 0) return direct;
        close(direct);
    }
#endif
    return dup(descriptor);
}

}  // namespace

DirectFile::DirectFile(int descriptor) : descriptor_(opened_again(descriptor)), cached_(dup(descriptor)) {
    if (descriptor_ < 0 || cached_ < 0) {
        const int error = errno;
        if (descriptor_ >= 0) close(descriptor_);
        if (cached_ >= 0) close(cached_);
        throw std::system_error(error, std::generic_category());
    }
#ifdef F_NOCACHE
    fcntl(descriptor_, F_NOCACHE, 1);
#endif
}

DirectFile::~DirectFile() {
    close(descriptor_);
    close(cached_);
}

// Linux 6.5 and later report it, for files that the user may write or owns. Without a report, nothing is
// cached.
bool DirectFile::is_cached(std::int64_t begin, std::int64_t bytes) const {
#ifdef __linux__
    constexpr long kCacheStat = 451;  // SYS_cachestat, which older headers lack
    const struct {
        std::uint64_t offset, length;
    } range{static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(bytes)};
    struct {
        std::uint64_t cached, dirty, being_written, evicted, recently_evicted;
    } pages{};
    const long page = sysconf(_SC_PAGESIZE);
    const std::int64_t first = begin / page, end = (begin + bytes + page - 1) / page;
    if (syscall(kCacheStat, cached_, &range, &pages, 0) != 0) return false;
    return pages.cached >= static_cast<std::uint64_t>(end - first);
#else
    (void)begin, (void)bytes;
    return false;
#endif
}

std::uint8_t* DirectFile::read(std::int64_t offset, std::int64_t bytes, std::uint8_t* room,
                               int& error) const {
    const std::int64_t begin = offset / kBlock * kBlock, wanted = offset + bytes - begin;
    const std::int64_t whole = (wanted + kBlock - 1) / kBlock * kBlock;
    const int descriptor = is_cached(offset, bytes) ? cached_ : descriptor_;
    std::int64_t done = 0;
    while (done < wanted) {
        const ssize_t got =
            pread(descriptor, room + done, static_cast<std::size_t>(whole - done), begin + done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            error = got == 0 ? kShortened : errno;
            return nullptr;
        }
        done += got;
        // The next read must begin with a block again. Only the last block of a file is not whole.
        if (done < wanted) done = done / kBlock * kBlock;
        if (got < kBlock && done < wanted) {
            error = kShortened;
            return nullptr;
        }
    }
    return room + (offset - begin);
}

}  // namespace chaski
