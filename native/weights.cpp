#include "weights.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/sysmacros.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <system_error>

#include "shared_memory.h"

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

// The bytes of some rows in the file, without what follows the last one.
std::int64_t stretch_bytes(const OwnedMatrix& weight, std::int64_t rows) {
    return (rows - 1) * weight.origin->stride + row_bytes(weight.matrix.type, weight.matrix.k);
}

// Whole groups of interleaved panels that fit into a piece of a stream; at least one group.
std::int64_t panels_of_piece(const OwnedMatrix& weight) {
    const std::int64_t group = interleaved_panels(weight.matrix.type);
    const std::int64_t fitting = DirectFile::kLongest / stored_bytes(weight, group);
    return std::max<std::int64_t>(fitting, 1) * group;
}

std::vector<Piece> split(const std::vector<OwnedMatrix>& weights) {
    std::vector<Piece> pieces;
    for (const OwnedMatrix& weight : weights) {
        const Matrix& m = weight.matrix;
        const std::int64_t panels = num_panels(m.rows), interleaved = interleaved_panels(m.type);
        const std::int64_t bytes = stored_bytes(weight, interleaved);
        const std::int64_t step = std::max<std::int64_t>(1, kPieceBytes / bytes) * interleaved;
        for (std::int64_t begin = 0; begin < panels; begin += step) {
            pieces.push_back({&weight, begin, std::min(begin + step, panels)});
        }
    }
    return pieces;
}

// The codes of a row of MXFP4 in the type's own order: byte j holds elements j and j + 16.
void deinterleave(std::uint8_t* row, std::int64_t bytes) {
    using Bytes8 = std::uint8_t __attribute__((vector_size(8)));
    using Bytes16 = std::uint8_t __attribute__((vector_size(16)));
    const BlockFormat& format = *find_format(DType::MXFP4);
    for (std::int64_t block = 0; block < bytes; block += format.bytes) {
        std::uint8_t* codes = row + block + format.fields[0].offset;
        Bytes8 first, second;
        std::memcpy(&first, codes, sizeof(first));
        std::memcpy(&second, codes + sizeof(first), sizeof(second));
        const Bytes8 even = (first & 0x0f) | (second << 4), odd = (first >> 4) | (second & 0xf0);
        const Bytes16 both =
            __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
        std::memcpy(codes, &both, sizeof(both));
    }
}

// The place of a matrix in its memory.
std::size_t offset_of(const OwnedMatrix& weight) {
    return static_cast<std::size_t>(reinterpret_cast<const std::byte*>(weight.matrix.panels) -
                                    weight.memory->data());
}

// Writable shared memory of consecutive matrices.
std::unique_ptr<SharedWriting> writing_of(const std::vector<OwnedMatrix>& weights, int descriptor) {
    std::size_t begin = SIZE_MAX, end = 0;
    for (const OwnedMatrix& weight : weights) {
        const Matrix& m = weight.matrix;
        const std::size_t place = offset_of(weight);
        begin = std::min(begin, place);
        end = std::max(end, place + static_cast<std::size_t>(matrix_bytes(m.type, m.rows, m.k)));
    }
    return std::make_unique<SharedWriting>(descriptor, begin, end);
}

// `shared`: the memory to write them to, if not their own.
void pack_all(ThreadPool& pool, const Kernels& kernels, const std::vector<OwnedMatrix>& weights,
              const SharedWriting* shared) {
    const std::vector<Piece> pieces = split(weights);
    std::int64_t largest = 0;
    for (const auto& [weight, begin, end] : pieces) {
        largest = std::max(largest, stored_bytes(*weight, end - begin));
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
            const std::size_t place = offset_of(*weight);
            std::byte* memory = shared == nullptr ? weight->memory->data() + place : shared->at(place);
            auto* panels = reinterpret_cast<std::uint8_t*>(memory) + panel_start(m.type, m.k, begin);
            if (!read_panels(kernels, *weight, begin, end, buffer, panels)) {
                error.store(weight->origin->file->error());
            }
        }
    });
    if (int code = error.load(); code != 0) throw std::runtime_error(std::strerror(code));
}

// Returns the number in a file of the system; nothing if there is none. Not by a stream, whose code in a
// static C++ library would need a newer C library than the wheel asks for.
[[maybe_unused]] std::optional<std::int64_t> number_in(const std::string& path) {
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return std::nullopt;
    std::array<char, 32> text;
    const ssize_t size = pread(descriptor, text.data(), text.size(), 0);
    close(descriptor);
    std::int64_t number = 0;
    if (size <= 0 || std::from_chars(text.data(), text.data() + size, number).ec != std::errc()) {
        return std::nullopt;
    }
    return number;
}

// The system reads only the beginning of a request that is longer than the disk takes at once. Disks that
// limit the number of requests, as of many virtual machines, are faster with long ones.
std::int64_t request_bytes_of([[maybe_unused]] int descriptor) {
    std::int64_t kibibytes = 512;
#ifdef __linux__
    struct stat state;
    if (fstat(descriptor, &state) == 0) {
        const std::string device = "/sys/dev/block/" + std::to_string(major(state.st_dev)) + ":" +
                                   std::to_string(minor(state.st_dev));
        for (const char* queue : {"/queue", "/../queue"}) {  // of a disk, or of the disk of a partition
            kibibytes = number_in(device + queue + "/max_sectors_kb").value_or(kibibytes);
        }
    }
#endif
    return std::clamp<std::int64_t>(kibibytes, 128, 4096) << 10;
}

}  // namespace

WeightFile::WeightFile(int descriptor)
    : request_bytes_(request_bytes_of(descriptor)), descriptor_(dup(descriptor)) {
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

std::array<std::int64_t, 4> WeightFile::identity() const {
    struct stat state;
    if (fstat(descriptor_, &state) != 0) throw std::system_error(errno, std::generic_category());
#ifdef __APPLE__
    const timespec& time = state.st_mtimespec;
#else
    const timespec& time = state.st_mtim;
#endif
    return {static_cast<std::int64_t>(state.st_dev), static_cast<std::int64_t>(state.st_ino),
            static_cast<std::int64_t>(state.st_size),
            std::int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec};
}

double WeightFile::resident_share(std::int64_t offset, std::int64_t bytes) const {
    const std::int64_t page = sysconf(_SC_PAGESIZE);
    const std::int64_t begin = offset / page * page;
    const auto length = static_cast<std::size_t>(offset + bytes - begin);
#ifdef __linux__
    std::vector<unsigned char> pages((length + page - 1) / page);
#else
    std::vector<char> pages((length + page - 1) / page);
#endif
    void* mapping = mmap(nullptr, length, PROT_READ, MAP_SHARED, descriptor_, begin);
    if (mapping == MAP_FAILED) return 0.0;
    std::int64_t resident = 0;
    if (mincore(mapping, length, pages.data()) == 0) {
        resident = std::count_if(pages.begin(), pages.end(), [](auto state) { return (state & 1) != 0; });
    }
    munmap(mapping, length);
    return static_cast<double>(resident) / static_cast<double>(pages.size());
}

void WeightFile::read_only_requested() const {
#ifdef __linux__
    posix_fadvise(descriptor_, 0, 0, POSIX_FADV_RANDOM);
#endif
}

void WeightFile::read_ahead(std::int64_t offset, std::int64_t bytes) const {
#ifdef __linux__
    for (const std::int64_t end = offset + bytes; offset < end; offset += request_bytes_) {
        posix_fadvise(descriptor_, offset, std::min(request_bytes_, end - offset), POSIX_FADV_WILLNEED);
    }
#else
    static_cast<void>(offset + bytes);
#endif
}

std::int64_t stored_bytes(const OwnedMatrix& weight, std::int64_t panels) {
    return panels * kLanes * weight.origin->stride;
}

bool read_panels(const Kernels& kernels, const OwnedMatrix& weight, std::int64_t begin, std::int64_t end,
                 std::uint8_t* rows, std::uint8_t* panels, const std::uint8_t* taken) {
    const Matrix& m = weight.matrix;
    const Origin& origin = *weight.origin;
    const std::int64_t count = rows_of(m, begin, end), bytes = stretch_bytes(weight, count);
    if (taken != nullptr && !origin.is_interleaved) {
        kernels.pack(m.type, taken, origin.stride, count, m.k, panels, 0, num_panels(count));
        return true;
    }
    if (taken != nullptr) {
        std::memcpy(rows, taken, static_cast<std::size_t>(bytes));  // it may be taken again, unchanged
    } else if (!origin.file->read(rows, bytes, origin.offset + begin * kLanes * origin.stride)) {
        return false;
    }
    pack_rows(kernels, {m.type, count, m.k, nullptr}, origin.stride, origin.is_interleaved, rows, panels);
    return true;
}

void start_stream(WeightStream& stream, std::int64_t bytes, const std::vector<OwnedMatrix>& weights,
                  int readers) {
    std::int64_t longest = DirectFile::kLongest;
    for (const OwnedMatrix& weight : weights) {
        longest = std::max(longest, stored_bytes(weight, panels_of_piece(weight)));
    }
    stream.start(bytes, longest, readers);
}

void stream_in_order(const std::shared_ptr<WeightStream>& stream, const std::vector<OwnedMatrix>& weights) {
    std::map<const WeightFile*, std::shared_ptr<const DirectFile>> files;
    std::vector<WeightStream::Piece> pieces;
    for (const OwnedMatrix& weight : weights) {
        Origin& origin = *weight.origin;
        std::shared_ptr<const DirectFile>& file = files[origin.file.get()];
        if (file == nullptr) file = origin.file->direct();
        origin.first_piece = std::ssize(pieces);
        origin.piece_panels = panels_of_piece(weight);
        origin.stream = stream;
        const std::int64_t panels = num_panels(weight.matrix.rows);
        for (std::int64_t begin = 0; begin < panels; begin += origin.piece_panels) {
            const std::int64_t end = std::min(begin + origin.piece_panels, panels);
            pieces.push_back({file, origin.offset + begin * kLanes * origin.stride,
                              stretch_bytes(weight, rows_of(weight.matrix, begin, end)), end - begin});
        }
    }
    stream->set(std::move(pieces));
}

void release(const OwnedMatrix& weight) {
    const Matrix& m = weight.matrix;
    weight.origin->is_laid_out.store(false, std::memory_order_release);
    give_back(weight.memory->data() + offset_of(weight), matrix_bytes(m.type, m.rows, m.k));
}

void pack_rows(const Kernels& kernels, const Matrix& part, std::int64_t stride, bool is_interleaved,
               std::uint8_t* rows, std::uint8_t* panels) {
    const std::int64_t bytes = row_bytes(part.type, part.k);
    for (std::int64_t row = 0; is_interleaved && row < part.rows; ++row) {
        deinterleave(rows + row * stride, bytes);
    }
    kernels.pack(part.type, rows, stride, part.rows, part.k, panels, 0, num_panels(part.rows));
}

void lay_out(ThreadPool& pool, const Kernels& kernels, const std::vector<OwnedMatrix>& weights,
             std::optional<int> shared) {
    if (weights.empty()) return;
    const auto writing = shared ? writing_of(weights, *shared) : nullptr;
    if (writing != nullptr) writing->allocate(pool);
    pack_all(pool, kernels, weights, writing.get());
    // Huge pages may have become free since then.
    if (writing != nullptr) writing->allocate(pool);
    for (const OwnedMatrix& weight : weights) {
        weight.origin->is_laid_out.store(true, std::memory_order_release);
    }
}

}  // namespace chaski
