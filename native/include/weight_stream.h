// Matrices that every pass reads from their files, in the order of the pass.
//
// A *piece* contains consecutive panels of a matrix as they are in the file. Readers fill slots with the
// pieces that a pass needs next, straight from the disk, also across the end of a pass. Each slot lies in
// huge pages of its own: on a virtual disk, a read into 500 small pages has a quarter of the rate.
//
// Threads take pieces in about ascending order. A piece that is far behind the last one was left out by this
// pass, and its slot is used again. A thread that needs a piece which is not in a slot and will not be soon
// reads it itself, so no order of requests can block another one.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "direct_file.h"
#include "memory.h"

namespace chaski {

class WeightStream {
   public:
    // Panels of a matrix, as rows of a file.
    struct Piece {
        std::shared_ptr<const DirectFile> file;
        std::int64_t offset, bytes, panels;
    };

    // `threads`: how many take pieces at the same time.
    explicit WeightStream(int threads) : threads_(threads) {}
    ~WeightStream() { stop(); }
    WeightStream(const WeightStream&) = delete;
    WeightStream& operator=(const WeightStream&) = delete;

    // Reserves about `bytes` of memory for pieces of up to `longest` bytes, and starts to read. Throws
    // std::bad_alloc and std::system_error.
    void start(std::int64_t bytes, std::int64_t longest, int readers);
    // Sets the pieces of a pass. Not while a plan runs.
    void set(std::vector<Piece> pieces);
    // Ends all reading.
    void stop();

    // Waits for a piece and returns its rows, which stay until `release`. Null if the caller has to read
    // them, and then it must not release them.
    const std::uint8_t* take(std::int64_t number);
    // Releases a piece after some of its panels have been computed.
    void release(std::int64_t number, std::int64_t panels);
    // The bytes of all slots.
    std::int64_t bytes() const { return memory_ == nullptr ? 0 : static_cast<std::int64_t>(memory_->size()); }

   private:
    static constexpr std::int64_t kNone = -1;

    struct Place {
        std::int64_t slot = kNone;
        const std::uint8_t* rows = nullptr;  // null until they are read
        std::int64_t left = 0;               // panels that this pass has still to compute
        int takers = 0;                      // threads that wait for it or compute with it
        bool is_unreadable = false;
    };

    // The following need the lock.
    std::int64_t from(std::int64_t begin, std::int64_t end) const;
    bool reads_soon(std::int64_t number) const;
    bool has_passed(std::int64_t number) const;
    bool find_next();
    std::int64_t free_slot();
    void empty(std::int64_t slot);
    void work();

    const int threads_;
    std::int64_t slot_bytes_ = 0;
    std::unique_ptr<Region> memory_;
    std::mutex mutex_;
    std::condition_variable work_;      // for readers
    std::condition_variable complete_;  // for threads that take
    bool is_stopping_ = false;
    int reading_ = 0;  // pieces that readers read now
    std::vector<Piece> pieces_;
    std::vector<Place> places_;         // of the pieces
    std::vector<std::int64_t> owners_;  // of the slots: pieces, or kNone
    std::int64_t window_ = 0;           // pieces that are read before they are needed
    std::int64_t next_ = 0;             // the piece that is read next
    std::int64_t latest_ = 0;           // the foremost piece that a thread has asked for
    std::vector<std::thread> readers_;
};

}  // namespace chaski
