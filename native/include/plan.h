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

// A length that is fixed, or that of a run-time dimension.
struct Extent {
    std::int64_t fixed = 0;
    std::optional<int> dim;

    std::int64_t in(const Sizes& sizes) const { return dim ? sizes[*dim] : fixed; }
};

// A piece of items that cost the same: long at first, so that each thread reads memory in one long stream,
// and ever shorter, so that all are done at the same time; a multiple of `least` (Polychronopoulos and Kuck,
// "Guided Self-Scheduling", 1987).
inline std::int64_t shrinking_piece(std::int64_t left, int threads, std::int64_t least) {
    return std::max(3 * left / (4 * threads) / least, std::int64_t{1}) * least;
}

// One operation. It is a number of independent items; which thread computes an item never changes its value.
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
    // The weights that it reads in any case; empty where that depends on its inputs.
    virtual std::span<const std::byte> weights() const { return {}; }
    // Bytes of scratch memory that one thread needs.
    virtual std::size_t scratch_bytes() const { return 0; }
    // Looks at the input buffers before anything runs; throws std::invalid_argument. Runs on the caller.
    virtual void prepare(const Sizes& sizes) { (void)sizes; }
};

// Nanoseconds of a clock that is never set.
std::int64_t steady_nanoseconds();

// Items of a step that a thread computed at once, and the time before and after.
struct Piece {
    std::int64_t thread, step, phase, begin, end, started, ended;
};

class Plan {
   public:
    // `cut_for`: the number of threads for which the work of a step is cut into pieces, where it is another
    // one than that of the team.
    Plan(std::shared_ptr<ThreadPool> pool, std::size_t arena_bytes, std::vector<std::string> dim_names,
         Sizes maxima, std::optional<int> cut_for = std::nullopt);
    ~Plan();

    // The arena at a byte offset; throws std::out_of_range unless `bytes` fit there.
    template <class T>
    T* buffer(std::size_t offset, std::size_t count) {
        return reinterpret_cast<T*>(checked(offset, count * sizeof(T)));
    }

    // Steps start in this order. Those after a barrier wait until all before it are done, since they read or
    // overwrite what one of these works on.
    void add(std::unique_ptr<Step> step);
    void barrier();
    // Reserves the scratch memory; nothing can be added afterwards.
    void finish();
    // Makes all of the memory resident.
    void touch();

    // Starts to compute, on the other threads of the team. Buffers must be left alone until `wait` has
    // returned. Throws std::invalid_argument when a size is out of range or an input value is.
    void launch(const Sizes& sizes);
    // Computes the remaining items, together with them.
    void wait();
    // Until there is something to read from a descriptor, has all threads read weights of the next run into
    // the caches, up to `most` bytes of them. Returns how many are ready for it; nothing if it ended before
    // that.
    std::optional<std::int64_t> read_ahead(int descriptor, std::int64_t most);

    // From now on every run notes its pieces.
    void trace() { traces_.resize(pool_->threads()); }
    // The pieces of the last run, of one thread after the other, each in order.
    std::vector<Piece> pieces() const;

    const Sizes& maxima() const { return maxima_; }
    std::size_t num_steps() const { return entries_.size(); }
    // For which the work is cut.
    int threads() const { return threads_; }
    std::size_t bytes() const { return arena_.size() + scratch_bytes_ * pool_->threads(); }

   private:
    // Steps that may run at the same time. A thread continues with the next phase when all items of this one
    // are done, by any thread: so a thread that comes late, or loses its core, delays the others only by the
    // items that it has taken.
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
    std::vector<Trace> traces_;  // of each thread; none where nothing is noted
};

}  // namespace chaski
