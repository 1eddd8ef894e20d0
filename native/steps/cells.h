// Steps that write the cells of key/value storage, and rotate the keys in them.
#pragma once

#include "rope.h"

namespace chaski {

inline std::size_t cell_scratch_bytes(const KVStorage& storage) {
    return align_up(static_cast<std::size_t>(cell_scratch_floats(storage)) * sizeof(float));
}

// Writes each row to the cell of key/value storage that `cells` names.
class StoreStep final : public RowStep {
   public:
    StoreStep(const Ops& ops, int dim, const float* x, const std::int32_t* cells, const KVStorage& storage)
        : RowStep(dim), ops_(ops), x_(x), cells_(cells), storage_(storage) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const override {
        ops_.store(x_ + begin * storage_.heads * storage_.size, storage_, cells_ + begin, end - begin,
                   reinterpret_cast<float*>(scratch));
    }
    // A piece of many tokens covers whole panels, since a kernel writes the cells of a panel together. Few
    // tokens usually belong to different sequences, each with its own panel.
    std::int64_t piece(const Sizes& sizes, std::int64_t left, int threads) const override {
        const bool has_panels = storage_.in_panels && items(sizes) > 4 * kLanes;
        return shrinking_piece(left, threads, has_panels ? 4 * kLanes : 1);
    }
    std::size_t scratch_bytes() const override { return cell_scratch_bytes(storage_); }

   private:
    const Ops& ops_;
    const float* x_;
    const std::int32_t* cells_;
    const KVStorage storage_;
};

// Rotates the keys in each of `cells` by the angles in the matching row of the table, in place. `block` is
// that of Ops::rotate.
class KeyShiftStep final : public RowStep {
   public:
    KeyShiftStep(const Ops& ops, int dim, const std::int32_t* cells, const RopeRows& rope, std::int64_t block,
                 const KVStorage& storage)
        : RowStep(dim), ops_(ops), cells_(cells), rope_(rope), block_(block), storage_(storage) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const override {
        for (std::int64_t i = begin; i < end; ++i) {
            ops_.rotate(storage_, cells_[i], rope_.cos(i), rope_.sin(i), rope_.pairs, rope_.neox, block_,
                        reinterpret_cast<float*>(scratch));
        }
    }
    std::size_t scratch_bytes() const override { return cell_scratch_bytes(storage_); }

   private:
    const Ops& ops_;
    const std::int32_t* cells_;
    const RopeRows rope_;
    const std::int64_t block_;
    const KVStorage storage_;
};

}  // namespace chaski
