// A model's weights in files and in memory, and their loading.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "thread_pool.h"
#include "weight_stream.h"

namespace chaski {

// A file with weights. Steps read it too but cannot throw, so the file remembers a failed read.
class WeightFile {
   public:
    explicit WeightFile(int descriptor);  // duplicates it; throws std::system_error
    ~WeightFile();
    WeightFile(const WeightFile&) = delete;
    WeightFile& operator=(const WeightFile&) = delete;

    bool read(std::uint8_t* buffer, std::int64_t bytes, std::int64_t offset) const;
    // errno of a read that failed, or 0.
    int error() const { return error_.load(); }
    // Device, inode, size and modification time (ns), which together identify a file and its content.
    std::array<std::int64_t, 4> identity() const;
    // The share of these bytes that the system has in memory, from 0 to 1; 0 if unknown.
    double resident_share(std::int64_t offset, std::int64_t bytes) const;

    // Lets the system read only what is requested, instead of what follows in the file too.
    void read_only_requested() const;
    // The same file, read past the system's cache. Throws std::system_error.
    std::shared_ptr<const DirectFile> direct() const { return std::make_shared<DirectFile>(descriptor_); }
    // Asks the system to read these bytes into memory, without waiting.
    void read_ahead(std::int64_t offset, std::int64_t bytes) const;

   private:
    const std::int64_t request_bytes_;  // the longest request to read ahead that the system does not cut
    const int descriptor_;              // opened last, since nothing would close it if another member failed
    mutable std::atomic<int> error_{0};
};

// The place of a matrix's rows in a file.
struct Origin {
    std::shared_ptr<const WeightFile> file;
    std::int64_t offset = 0;
    std::int64_t stride = 0;              // bytes from one row to the next; other rows may lie between
    bool is_interleaved = false;          // of MXFP4: elements 2 j and 2 j + 1 share byte j, not j and j + 16
    std::atomic<bool> is_laid_out{true};  // false: the panels in memory are not filled yet
    // What steps take rows from while they are not laid out; null if they read the file themselves.
    std::shared_ptr<WeightStream> stream;
    std::int64_t first_piece = 0, piece_panels = 0;  // of the stream
};

// A matrix, the memory of its panels, and their origin.
struct OwnedMatrix {
    Matrix matrix;
    std::shared_ptr<Region> memory;
    std::shared_ptr<Origin> origin;

    bool is_laid_out() const { return origin->is_laid_out.load(std::memory_order_acquire); }
};

// The bytes of this many panels in the file, including bytes between their rows.
std::int64_t stored_bytes(const OwnedMatrix& weight, std::int64_t panels);

// Reads panels begin..end-1 from the file and packs them as the first ones of `panels`. `rows` has room for
// their `stored_bytes`. `taken`: their rows, if a stream has read them. Returns false when they cannot be
// read.
bool read_panels(const Kernels& kernels, const OwnedMatrix& weight, std::int64_t begin, std::int64_t end,
                 std::uint8_t* rows, std::uint8_t* panels, const std::uint8_t* taken = nullptr);

// Reserves about `bytes` of memory for any of these matrices, and starts to read. Throws std::bad_alloc and
// std::system_error.
void start_stream(WeightStream& stream, std::int64_t bytes, const std::vector<OwnedMatrix>& weights,
                  int readers);

// Lets steps take matrices that are not laid out from a stream, which reads them in this order. Not while a
// plan runs.
void stream_in_order(const std::shared_ptr<WeightStream>& stream, const std::vector<OwnedMatrix>& weights);

// Makes steps read the matrix from its file again, and gives its memory back. Not while a step runs.
void release(const OwnedMatrix& weight);

// Packs the rows of `part`, which lie in a file's layout, into whole panels. It changes interleaved rows.
void pack_rows(const Kernels& kernels, const Matrix& part, std::int64_t stride, bool is_interleaved,
               std::uint8_t* rows, std::uint8_t* panels);

// Lays matrices out in their memory with all threads; steps may compute with them at the same time. `shared`:
// the descriptor of their common shared memory, through which it is written; none for private memory. Throws
// std::runtime_error when a file is too short or cannot be read, and std::bad_alloc.
void lay_out(ThreadPool& pool, const Kernels& kernels, const std::vector<OwnedMatrix>& weights,
             std::optional<int> shared);

}  // namespace chaski
