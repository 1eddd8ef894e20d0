// A plan: a model's forward pass as a list of steps over one arena, replayed by a team of threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
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
    int dim = -1;

    std::int64_t in(const Sizes& sizes) const { return dim < 0 ? fixed : sizes[dim]; }
};

// One operation. It is a number of independent items; which thread computes an item never changes its value.
class Step {
   public:
    virtual ~Step() = default;

    virtual std::int64_t items(const Sizes& sizes) const = 0;
    // How many items a thread takes at once.
    virtual std::int64_t grain(const Sizes& sizes, int threads) const = 0;
    virtual void run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte* scratch) const = 0;
    // Bytes of scratch memory that one thread needs.
    virtual std::size_t scratch_bytes() const { return 0; }
    // Looks at the input buffers before anything runs; throws std::invalid_argument. Runs on the caller.
    virtual void prepare(const Sizes& sizes) { (void)sizes; }
};

class Plan {
   public:
    Plan(std::shared_ptr<ThreadPool> pool, std::size_t arena_bytes, std::vector<std::string> dim_names,
         Sizes maxima);

    // The arena at a byte offset; throws std::out_of_range unless `bytes` fit there.
    template <class T>
    T* buffer(std::size_t offset, std::size_t count) {
        return reinterpret_cast<T*>(checked(offset, count * sizeof(T)));
    }

    // Steps run in this order. `after_barrier`: the step reads, or overwrites, what an earlier one works on.
    void add(std::unique_ptr<Step> step, bool after_barrier);
    // Reserves the scratch memory; nothing can be added afterwards.
    void finish();

    // Throws std::invalid_argument when a size is out of range or an input value is.
    void run(const Sizes& sizes);

    const Sizes& maxima() const { return maxima_; }
    std::size_t bytes() const { return arena_.size() + scratch_bytes_ * pool_->threads(); }

   private:
    struct alignas(64) Entry {
        std::unique_ptr<Step> step;
        bool after_barrier;
        std::int64_t items = 0;
        std::int64_t grain = 1;
        alignas(64) std::atomic<std::int64_t> next{0};
    };

    std::byte* checked(std::size_t offset, std::size_t bytes) const;
    void work(const Sizes& sizes, int thread);

    std::shared_ptr<ThreadPool> pool_;
    Region arena_;
    std::vector<std::string> dim_names_;
    Sizes maxima_;
    std::vector<std::unique_ptr<Entry>> entries_;
    std::size_t scratch_bytes_ = 0;
    std::unique_ptr<Region> scratch_;
};

}  // namespace chaski
