// The experts of a model that do not all fit into memory.
//
// A *stack* contains one matrix of each expert of a layer: gate, up or down. In memory, a stack has slots for
// some of its matrices, as many as the budget allows, and the same number for all stacks of a layer. When a
// batch has chosen its experts, it requests them in all stacks of the layer. Matrices in memory are computed
// first. Readers meanwhile read the others from the file, pack each into the slot of the matrix with the
// lowest priority, and may reuse that slot as soon as all rows of its expert are computed. So one slot of
// each stack is enough for any batch, and no matrix is read twice for one batch.
//
// The priority of an expert is the number of tokens that chose it, where a token counts half as much after
// `kHalfLife` later ones. It decides by frequency and recency ("LRFU", Lee et al. 2001). While nothing
// is requested, readers fill empty slots, one matrix at a time.
//
// A failed read of a matrix that the batch needs is tried again until some time has passed since the first
// failure of the batch. Rows of experts that are still missing then become zero, and are reported. All other
// rows are right, because no row depends on another one within a batch, except through keys and values of its
// own sequence.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "direct_file.h"
#include "kernels.h"
#include "memory.h"

namespace chaski {

// An expert that a batch has chosen, and the number of its rows.
struct ChosenExpert {
    std::int32_t expert;
    std::int64_t rows;
};

// What a stack has done so far, and what it holds. Counts are of matrices.
struct StackCounts {
    std::int64_t requests = 0;
    std::int64_t hits = 0;  // of these, those that were in memory when they were requested
    std::int64_t bytes_read = 0;
    std::int64_t slots = 0;
};

// Rows of a batch that lacked an expert: pairs of the number of their dimension and a row; and the first
// stack that could not be read, with the error, see DirectFile.
struct MissingRows {
    int stack;
    int error;
    std::set<std::pair<int, std::int64_t>> rows;
};

class ExpertStore {
   public:
    // The matrices of a stack, which have one type and shape.
    struct Stack {
        int layer;
        DType type;
        std::int64_t rows, k;
        std::int64_t stride;                // bytes from one row to the next in the file
        bool is_interleaved;                // see Origin
        std::vector<std::int64_t> offsets;  // of the matrices in the file
        std::shared_ptr<const DirectFile> file;
    };

    explicit ExpertStore(const Kernels& kernels) : kernels_(kernels) {}
    ~ExpertStore() { stop(); }
    ExpertStore(const ExpertStore&) = delete;
    ExpertStore& operator=(const ExpertStore&) = delete;

    // Adds a stack and returns its number. The stacks of a layer follow each other.
    int add(Stack stack);
    const Stack& stack(int number) const { return parts_[number]->stack; }
    // The bytes of all matrices, and of the fewest that the store can work with.
    std::int64_t total_bytes() const { return bytes_with(std::numeric_limits<std::int64_t>::max()); }
    std::int64_t least_bytes() const { return bytes_with(kLeastSlots); }

    // Reserves memory of up to `bytes` and starts to read. A batch tries failed reads again for the time of
    // `patience`. Throws std::bad_alloc and std::system_error.
    void start(std::int64_t bytes, int readers, std::chrono::milliseconds patience);
    // Changes the memory that slots take, up to that of `start`. Callable while a batch is computed, which
    // keeps the experts that it needs until they are computed.
    void resize(std::int64_t bytes);
    // Ends all reading. Experts that are not in memory are missing then.
    void stop();

    // Within a batch: requests the chosen experts in these stacks, and sets the order of computing them.
    void request(std::span<const int> stacks, std::span<const ChosenExpert> chosen, std::int64_t tokens);
    // The numbers of the chosen experts within `chosen`, those in memory first.
    std::span<const std::int32_t> order(int stack) const { return parts_[stack]->order; }
    // Waits for the panels of an expert. Null if they cannot be read; then `miss` notes a row that needs
    // them.
    const std::uint8_t* panels(int stack, std::int32_t expert);
    void miss(int stack, std::int32_t expert, int dim, std::int64_t row);
    // Releases an expert when all panels of its matrix have been computed with all of its rows.
    void computed(int stack, std::int32_t expert, std::int64_t panels);

    // The rows of the last batch that lacked an expert; forgets them.
    std::optional<MissingRows> take_missing();
    // The bytes of the slots that contain experts.
    std::int64_t filled_bytes() const;
    StackCounts counts(int stack) const;

   private:
    static constexpr std::int64_t kLeastSlots = 2;  // one to compute with while the other is read
    static constexpr std::int64_t kHalfLife = 256;  // tokens
    static constexpr std::int32_t kNone = -1;
    static constexpr std::chrono::milliseconds kPause{20};  // after a failed read

    struct Expert {
        std::atomic<const std::uint8_t*> panels{nullptr};  // null until they are complete
        std::atomic<std::int64_t> left{0};                 // panels that this batch has still to compute with
        std::int32_t slot = kNone;
        std::int64_t unread = 0;  // panels that are not in the slot yet
        bool is_needed = false;   // by this batch, and not computed yet
        int error = 0;            // of the last try to read it, see DirectFile
        double priority = -std::numeric_limits<double>::infinity();  // log2
    };
    struct Part {
        Stack stack;
        std::int64_t slot_bytes;
        std::vector<Expert> experts;
        std::vector<std::int32_t> owners;  // of all slots: experts, or kNone
        std::int64_t slots = 0;            // in use; more may exist
        std::byte* memory = nullptr;
        std::deque<std::int32_t> wanted;  // experts that wait for a slot
        std::vector<std::int32_t> order;
        std::int64_t tokens = 0;
        StackCounts counts;

        explicit Part(Stack of);
        std::int64_t num_experts() const { return static_cast<std::int64_t>(experts.size()); }
    };
    // Panels of a matrix that a reader reads.
    struct Piece {
        Part* part;
        Expert* expert;
        std::int64_t begin, end;
    };

    std::int64_t bytes_with(std::int64_t slots) const;
    std::vector<std::int64_t> slots_within(std::int64_t bytes) const;

    // The following need the lock.
    void note(Part& part, std::span<const ChosenExpert> chosen, std::int64_t tokens);
    bool next(Piece& piece);
    bool begin_again();
    bool begin_wanted();
    bool begin_filling();
    void begin(Part& part, std::int32_t expert, std::int64_t slot);
    std::int64_t free_slot(Part& part);
    void leave(Part& part, Expert& expert);
    void drop_if_surplus(Part& part, Expert& expert);
    void finish(const Piece& piece, int error);
    bool is_patient();

    void work(std::uint8_t* room);
    int read(const Piece& piece, std::uint8_t* room) const;

    const Kernels& kernels_;
    std::vector<std::unique_ptr<Part>> parts_;
    std::unique_ptr<Region> memory_;
    std::unique_ptr<Region> rooms_;
    mutable std::mutex mutex_;
    std::condition_variable work_;      // for readers
    std::condition_variable complete_;  // for computing threads
    bool is_stopping_ = false;
    std::vector<int> requested_;             // stacks with wanted experts, which are read first
    Piece current_{nullptr, nullptr, 0, 0};  // the rest of the matrix whose pieces readers take now
    std::deque<Piece> again_;                // matrices that could not be read
    std::size_t filling_ = 0;                // the stack in which empty slots are looked for next
    const Expert* filled_ = nullptr;         // the last expert that was read into an empty slot unasked
    std::optional<MissingRows> missing_;
    std::chrono::milliseconds patience_{};
    std::optional<std::chrono::steady_clock::time_point> patience_end_;
    std::vector<std::thread> readers_;
};

}  // namespace chaski
