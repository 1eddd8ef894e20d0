// A plan: a model's forward pass as a list of steps over one arena, replayed by a team of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memory.h"
#include "thread_pool.h"

namespace chaski {

// The run-time dimensions of a plan, in the order in which it declares them.
using Sizes = std::vector<std::int64_t>;

// A fixed length, or the length of a run-time dimension.
struct Extent {
    std::int64_t fixed = 0;
    std::optional<int> dim;

    std::int64_t in(const Sizes& sizes) const { return dim ? sizes[*dim] : fixed; }
};

// The length of the next piece of items with equal cost, a multiple of `least`. Pieces are long at first, so
// that each thread reads memory in one long stream, and then become shorter, so that all threads finish at
// the same time (Polychronopoulos and Kuck, "Guided Self-Scheduling", 1987).
inline std::int64_t shrinking_piece(std::int64_t left, int threads, std::int64_t least) {
    return std::max(3 * left / (4 * threads) / least, std::int64_t{1}) * least;
}

// One operation, which consists of independent items. The value of an item does not depend on the thread that
// computes it.
class Step {
   public:
    virtual ~Step() = default;

    virtual std::int64_t items(const Sizes& sizes) const = 0;
    // The number of items that a thread takes at once while `left` are left.
    virtual std::int64_t piece(const Sizes& sizes, std::int64_t left, int threads) const {
        (void)sizes;
        return shrinking_piece(left, threads, 1);
    }
    virtual void run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte* scratch) const = 0;
    // The weights that every run reads; empty if that depends on the inputs.
    virtual std::span<const std::byte> weights() const { return {}; }
    // Bytes of scratch memory that one thread needs.
    virtual std::size_t scratch_bytes() const { return 0; }
    // Checks the input buffers before anything runs; throws std::invalid_argument. Runs on the caller.
    virtual void prepare(const Sizes& sizes) { (void)sizes; }
};

// Nanoseconds of a monotonic clock.
std::int64_t steady_nanoseconds();

// A piece of a step's items that a thread computed, with its start and end time.
struct Piece {
    std::int64_t thread, step, phase, begin, end, started, ended;
};

class Plan {
   public:
    // `cut_for`: the number of threads for which a step's work is cut into pieces, if it differs from the
    // team's.
    Plan(std::shared_ptr<ThreadPool> pool, std::size_t arena_bytes, std::vector<std::string> dim_names,
         Sizes maxima, std::optional<int> cut_for = std::nullopt);
    ~Plan();

    // The arena at a byte offset; throws std::out_of_range unless `bytes` fit there.
    template <class T>
    T* buffer(std::size_t offset, std::size_t count) {
        return reinterpret_cast<T*>(checked(offset, count * sizeof(T)));
    }

    // Steps start in this order. Steps after a barrier wait until all steps before it are done, since they
    // read or overwrite the data of one of these.
    void add(std::unique_ptr<Step> step);
    void barrier();
    // Reserves the scratch memory; no step can be added afterwards.
    void finish();
    // Makes all of the memory resident.
    void touch();

    // Starts to compute on the other threads of the team. The caller must not touch buffers until `wait` has
    // returned. Throws std::invalid_argument when a size or an input value is out of range.
    void launch(const Sizes& sizes);
    // Computes the remaining items together with these threads.
    void wait();
    // Lets all threads read up to `most` bytes of the next run's weights into the caches, until a descriptor
    // becomes readable. Returns the number of bytes that are ready; nothing if it stopped before that.
    std::optional<std::int64_t> read_ahead(int descriptor, std::int64_t most);

    // Lets every later run record its pieces.
    void trace() { traces_.resize(pool_->threads()); }
    // The pieces of the last run, of one thread after the other, each in order.
    std::vector<Piece> pieces() const;

    const Sizes& maxima() const { return maxima_; }
    std::size_t num_steps() const { return entries_.size(); }
    // The number of threads for which work is cut into pieces.
    int threads() const { return threads_; }
    std::size_t bytes() const { return arena_.size() + scratch_bytes_ * pool_->threads(); }

   private:
    // Steps that may run at the same time. A thread continues with the next phase when all items of this one
    // are done, whichever thread computed them. So a thread that starts late, or loses its core, delays the
    // others only by the items that it has taken.
    struct alignas(64) Phase {
        std::atomic<std::int64_t> items_left{0};
    };
    struct alignas(64) Entry {
        std::unique_ptr<Step> step;
        std::size_t phase;
        std::int64_t items = 0;
        alignas(64) std::atomic<std::int64_t> next{0};
    };

    struct alignas(64) Trace {
        std::vector<Piece> pieces;
    };

    std::byte* checked(std::size_t offset, std::size_t bytes) const;
    void work(int thread);

    std::shared_ptr<ThreadPool> pool_;
    Region arena_;
    std::vector<std::string> dim_names_;
    Sizes maxima_;
    const int threads_;
    Sizes sizes_;                  // of this run
    std::int64_t read_ahead_ = 0;  // bytes for the next run
    std::vector<std::unique_ptr<Phase>> phases_;
    std::vector<std::unique_ptr<Entry>> entries_;
    std::size_t scratch_bytes_ = 0;
    std::unique_ptr<Region> scratch_;
    std::vector<Trace> traces_;  // of each thread; empty without recording
};

}  // namespace chaski
