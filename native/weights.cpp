#include "weights.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace chaski {

namespace {

// Bytes that a thread reads before it packs them: they stay in its own cache in between.
constexpr std::int64_t kPieceBytes = 512 << 10;

struct Piece {
    const MatrixSource* source;
    std::int64_t panel_begin;
    std::int64_t panel_end;
};

std::vector<Piece> split(const std::vector<MatrixSource>& sources) {
    std::vector<Piece> pieces;
    for (const MatrixSource& source : sources) {
        std::int64_t panels = num_panels(source.target.rows);
        std::int64_t abreast = panels_abreast(source.target.type);
        std::int64_t step = std::max<std::int64_t>(
                                1, kPieceBytes / panel_bytes(source.target.type, source.target.k) / abreast) *
                            abreast;
        for (std::int64_t begin = 0; begin < panels; begin += step) {
            pieces.push_back({&source, begin, std::min(begin + step, panels)});
        }
    }
    return pieces;
}

// Fills the buffer from the file; returns false and keeps errno when it cannot.
bool read_all(int descriptor, std::uint8_t* buffer, std::int64_t bytes, std::int64_t offset) {
    while (bytes > 0) {
        ssize_t got = pread(descriptor, buffer, static_cast<std::size_t>(bytes), offset);
        if (got < 0 && errno == EINTR) continue;
        if (got == 0) errno = EIO;
        if (got <= 0) return false;
        buffer += got;
        bytes -= got;
        offset += got;
    }
    return true;
}

}  // namespace

void load_matrices(ThreadPool& pool, const Kernels& kernels, const std::vector<MatrixSource>& sources) {
    std::vector<Piece> pieces = split(sources);
    std::int64_t largest = 0;
    for (const Piece& piece : pieces) {
        const Matrix& m = piece.source->target;
        std::int64_t rows = std::min(piece.panel_end * kLanes, m.rows) - piece.panel_begin * kLanes;
        largest = std::max(largest, rows * row_bytes(m.type, m.k));
    }
    std::vector<std::vector<std::uint8_t>> buffers(pool.threads(), std::vector<std::uint8_t>(largest));
    std::atomic<std::size_t> next{0};
    std::atomic<int> error{0};
    pool.run([&](int thread) {
        std::uint8_t* buffer = buffers[thread].data();
        for (std::size_t i = next.fetch_add(1); i < pieces.size() && error.load() == 0;
             i = next.fetch_add(1)) {
            const Piece& piece = pieces[i];
            const Matrix& m = piece.source->target;
            std::int64_t stride = row_bytes(m.type, m.k);
            std::int64_t first = piece.panel_begin * kLanes;
            std::int64_t rows = std::min(piece.panel_end * kLanes, m.rows) - first;
            if (!read_all(piece.source->descriptor, buffer, rows * stride,
                          piece.source->offset + first * stride)) {
                error.store(errno);
                return;
            }
            // The packer takes the address of row 0 of the matrix; here row `first` is the buffer's start.
            kernels.pack(m.type, buffer, stride, rows, m.k,
                         piece.source->panels + piece.panel_begin * panel_bytes(m.type, m.k), 0,
                         piece.panel_end - piece.panel_begin);
        }
    });
    if (int code = error.load(); code != 0) {
        throw std::runtime_error(std::strerror(code));
    }
}

}  // namespace chaski
