#include "weights.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace chaski {

namespace {

// Bytes that a thread reads before it packs them: they stay in its own cache in between.
constexpr std::int64_t kPieceBytes = 512 << 10;

struct Piece {
    const OwnedMatrix* weight;
    std::int64_t panel_begin;
    std::int64_t panel_end;
};

std::int64_t rows_of(const Matrix& m, std::int64_t panel_begin, std::int64_t panel_end) {
    return std::min(panel_end * kLanes, m.rows) - panel_begin * kLanes;
}

std::vector<Piece> split(const std::vector<OwnedMatrix>& weights) {
    std::vector<Piece> pieces;
    for (const OwnedMatrix& weight : weights) {
        const Matrix& m = weight.matrix;
        const std::int64_t panels = num_panels(m.rows), abreast = panels_abreast(m.type);
        const std::int64_t bytes = abreast * panel_bytes(m.type, m.k);
        const std::int64_t step = std::max<std::int64_t>(1, kPieceBytes / bytes) * abreast;
        for (std::int64_t begin = 0; begin < panels; begin += step) {
            pieces.push_back({&weight, begin, std::min(begin + step, panels)});
        }
    }
    return pieces;
}

}  // namespace

WeightFile::WeightFile(int descriptor) : descriptor_(dup(descriptor)) {
    if (descriptor_ < 0) throw std::system_error(errno, std::generic_category());
}

WeightFile::~WeightFile() { close(descriptor_); }

bool WeightFile::read(std::uint8_t* buffer, std::int64_t bytes, std::int64_t offset) const {
    while (bytes > 0) {
        const ssize_t got = pread(descriptor_, buffer, static_cast<std::size_t>(bytes), offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            error_.store(got == 0 ? EIO : errno);
            return false;
        }
        buffer += got;
        bytes -= got;
        offset += got;
    }
    return true;
}

double WeightFile::resident_share(std::int64_t offset, std::int64_t bytes) const {
    const std::int64_t page = sysconf(_SC_PAGESIZE);
    const std::int64_t begin = offset / page * page;
    const auto length = static_cast<std::size_t>(offset + bytes - begin);
    void* mapping = mmap(nullptr, length, PROT_READ, MAP_SHARED, descriptor_, begin);
    if (mapping == MAP_FAILED) return 0.0;
#ifdef __linux__
    std::vector<unsigned char> pages((length + page - 1) / page);
#else
    std::vector<char> pages((length + page - 1) / page);
#endif
    std::int64_t resident = 0;
    if (mincore(mapping, length, pages.data()) == 0) {
        resident = std::count_if(pages.begin(), pages.end(), [](auto state) { return (state & 1) != 0; });
    }
    munmap(mapping, length);
    return static_cast<double>(resident) / static_cast<double>(pages.size());
}

bool read_panels(const Kernels& kernels, const OwnedMatrix& weight, std::int64_t begin, std::int64_t end,
                 std::uint8_t* rows, std::uint8_t* panels) {
    const Matrix& m = weight.matrix;
    const std::int64_t stride = row_bytes(m.type, m.k), count = rows_of(m, begin, end);
    const std::int64_t place = weight.origin->offset + begin * kLanes * stride;
    if (!weight.origin->file->read(rows, count * stride, place)) return false;
    kernels.pack(m.type, rows, stride, count, m.k, panels, 0, end - begin);
    return true;
}

void lay_out(ThreadPool& pool, const Kernels& kernels, const std::vector<OwnedMatrix>& weights) {
    const std::vector<Piece> pieces = split(weights);
    std::int64_t largest = 0;
    for (const auto& [weight, begin, end] : pieces) {
        const Matrix& m = weight->matrix;
        largest = std::max(largest, rows_of(m, begin, end) * row_bytes(m.type, m.k));
    }
    std::vector<std::vector<std::uint8_t>> buffers(pool.threads(), std::vector<std::uint8_t>(largest));
    std::atomic<std::size_t> next{0};
    std::atomic<int> error{0};
    pool.run([&](int thread) {
        std::uint8_t* buffer = buffers[thread].data();
        for (std::size_t i = next.fetch_add(1); i < pieces.size() && error.load() == 0;
             i = next.fetch_add(1)) {
            const auto& [weight, begin, end] = pieces[i];
            const Matrix& m = weight->matrix;
            auto* panels = const_cast<std::uint8_t*>(m.panels) + panel_start(m.type, m.k, begin);
            if (!read_panels(kernels, *weight, begin, end, buffer, panels)) {
                error.store(weight->origin->file->error());
            }
        }
    });
    if (int code = error.load(); code != 0) throw std::runtime_error(std::strerror(code));
    for (const OwnedMatrix& weight : weights) {
        weight.origin->is_laid_out.store(true, std::memory_order_release);
    }
}

}  // namespace chaski
