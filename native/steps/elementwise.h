// Steps of a plan that work row by row or element by element.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels.h"
#include "ops.h"
#include "plan.h"

namespace chaski {

// Rounds a step's result to int8 blocks right where it was made, for the matrix products that read it.
// A row is a multiple of 32 long, so rows follow each other in `out` as they do in the float buffer.
struct Quantizer {
    const Kernels& kernels;
    Activations out;

    void operator()(const float* x, std::int64_t offset, std::int64_t count) const {
        Activations piece{out.values + offset, out.scales + offset / 32, out.sums + offset / 16, nullptr};
        kernels.quantize_rows(x + offset, 1, count, piece);
    }
};

// A step over the rows of one run-time dimension.
class RowStep : public Step {
   public:
    explicit RowStep(int dim) : dim_(dim) {}
    std::int64_t items(const Sizes& sizes) const override { return sizes[dim_]; }
    std::int64_t piece(const Sizes&, std::int64_t left, int threads) const override {
        return shrinking_piece(left, threads, 1);
    }

   protected:
    const int dim_;
};

// A step over `width` independent elements of each row, in pieces of kPiece.
class ElementStep : public Step {
   public:
    static constexpr std::int64_t kPiece = 2048;
    ElementStep(int dim, std::int64_t width) : dim_(dim), width_(width) {}
    std::int64_t items(const Sizes& sizes) const override {
        return (sizes[dim_] * width_ + kPiece - 1) / kPiece;
    }
    std::int64_t piece(const Sizes&, std::int64_t left, int threads) const override {
        return shrinking_piece(left, threads, 1);
    }
    void run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte*) const override {
        std::int64_t last = sizes[dim_] * width_;
        std::int64_t stop = end * kPiece < last ? end * kPiece : last;
        apply(begin * kPiece, stop - begin * kPiece);
    }

   protected:
    virtual void apply(std::int64_t offset, std::int64_t count) const = 0;

   private:
    const int dim_;
    const std::int64_t width_;
};

// normalize(x, y) for every one of the `heads` rows of `size` elements that a token has.
template <class F>
class NormStep final : public RowStep {
   public:
    NormStep(int dim, std::int64_t heads, std::int64_t size, const float* x, float* y,
             std::optional<Quantizer> quantize, F normalize)
        : RowStep(dim),
          heads_(heads),
          size_(size),
          x_(x),
          y_(y),
          quantize_(quantize),
          normalize_(normalize) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const override {
        for (std::int64_t i = begin; i < end; ++i) {
            for (std::int64_t head = i * heads_; head < (i + 1) * heads_; ++head) {
                normalize_(x_ + head * size_, y_ + head * size_);
            }
            if (quantize_) (*quantize_)(y_, i * heads_ * size_, heads_ * size_);
        }
    }

   private:
    const std::int64_t heads_;
    const std::int64_t size_;
    const float* x_;
    float* y_;
    const std::optional<Quantizer> quantize_;
    const F normalize_;
};

// map(offset, count) makes `count` elements of y from `offset` on.
template <class F>
class MapStep final : public ElementStep {
   public:
    MapStep(int dim, std::int64_t width, float* y, std::optional<Quantizer> quantize, F map)
        : ElementStep(dim, width), y_(y), quantize_(quantize), map_(map) {}

   protected:
    void apply(std::int64_t offset, std::int64_t count) const override {
        map_(offset, count);
        if (quantize_) (*quantize_)(y_, offset, count);
    }

   private:
    float* y_;
    const std::optional<Quantizer> quantize_;
    const F map_;
};

// Quantizes what was computed by a step that cannot do it itself.
class QuantizeStep final : public ElementStep {
   public:
    QuantizeStep(int dim, std::int64_t width, const float* x, Quantizer quantize)
        : ElementStep(dim, width), x_(x), quantize_(quantize) {}

   protected:
    void apply(std::int64_t offset, std::int64_t count) const override { quantize_(x_, offset, count); }

   private:
    const float* x_;
    const Quantizer quantize_;
};

// Copies `width` elements of each row of `source_width`, from `first` on.
class ColumnsStep final : public RowStep {
   public:
    ColumnsStep(int dim, std::int64_t source_width, std::int64_t first, std::int64_t width, const float* x,
                float* y)
        : RowStep(dim), source_width_(source_width), first_(first), width_(width), x_(x), y_(y) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const override;

   private:
    const std::int64_t source_width_;
    const std::int64_t first_;
    const std::int64_t width_;
    const float* x_;
    float* y_;
};

// Copies the elements of each row to the columns first, first + stride, ... of y.
class PutColumnsStep final : public RowStep {
   public:
    PutColumnsStep(int dim, std::int64_t width, std::int64_t target_width, std::int64_t first,
                   std::int64_t stride, const float* x, float* y)
        : RowStep(dim),
          width_(width),
          target_width_(target_width),
          first_(first),
          stride_(stride),
          x_(x),
          y_(y) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const override;

   private:
    const std::int64_t width_;
    const std::int64_t target_width_;
    const std::int64_t first_;
    const std::int64_t stride_;
    const float* x_;
    float* y_;
};

// Each row times its own factor.
class TimesStep final : public RowStep {
   public:
    TimesStep(const Ops& ops, int dim, std::int64_t width, const float* x, const float* factors, float* y)
        : RowStep(dim), ops_(ops), width_(width), x_(x), factors_(factors), y_(y) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const override {
        for (std::int64_t i = begin; i < end; ++i) {
            ops_.scale(x_ + i * width_, factors_[i], width_, y_ + i * width_);
        }
    }

   private:
    const Ops& ops_;
    const std::int64_t width_;
    const float* x_;
    const float* factors_;
    float* y_;
};

// 1 + beta · ln(1 + floor((position + offset) / length)). By libm, so equal for every instruction set.
class PositionScaleStep final : public RowStep {
   public:
    PositionScaleStep(int dim, const std::int32_t* positions, std::int64_t length, double beta,
                      std::int64_t offset, float* factors)
        : RowStep(dim),
          positions_(positions),
          length_(length),
          beta_(beta),
          offset_(offset),
          factors_(factors) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const override;

   private:
    const std::int32_t* positions_;
    const std::int64_t length_;
    const double beta_;
    const std::int64_t offset_;
    float* factors_;
};

// Copies the rows of x that `indices` names.
class RowsStep final : public RowStep {
   public:
    RowsStep(int dim, std::int64_t width, const float* x, const std::int32_t* indices, float* y)
        : RowStep(dim), width_(width), x_(x), indices_(indices), y_(y) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const override;

   private:
    const std::int64_t width_;
    const float* x_;
    const std::int32_t* indices_;
    float* y_;
};

// Copies the rows of x to those that `places` names.
class PutRowsStep final : public RowStep {
   public:
    PutRowsStep(int dim, std::int64_t width, const float* x, const std::int32_t* places, float* y)
        : RowStep(dim), width_(width), x_(x), places_(places), y_(y) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const override;

   private:
    const std::int64_t width_;
    const float* x_;
    const std::int32_t* places_;
    float* y_;
};

// The average of each `count` rows of x, added up in order.
class AverageRowsStep final : public RowStep {
   public:
    AverageRowsStep(const Ops& ops, int dim, int source_dim, std::int64_t width, std::int64_t count,
                    const float* x, float* y)
        : RowStep(dim), ops_(ops), source_dim_(source_dim), width_(width), count_(count), x_(x), y_(y) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const override;
    void prepare(const Sizes& sizes) override;

   private:
    const Ops& ops_;
    const int source_dim_;
    const std::int64_t width_;
    const std::int64_t count_;
    const float* x_;
    float* y_;
};

// Each `count` rows of x as one, their elements in turns: [width][count].
class UnfoldStep final : public RowStep {
   public:
    UnfoldStep(int dim, int source_dim, std::int64_t width, std::int64_t count, const float* x, float* y)
        : RowStep(dim), source_dim_(source_dim), width_(width), count_(count), x_(x), y_(y) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const override;
    void prepare(const Sizes& sizes) override;

   private:
    const int source_dim_;
    const std::int64_t width_;
    const std::int64_t count_;
    const float* x_;
    float* y_;
};

// Each row times a matrix of float32 rows [depth][width], one serial sum along the depth for each element.
class ProductStep final : public RowStep {
   public:
    ProductStep(const Ops& ops, int dim, std::int64_t depth, std::int64_t width, const float* matrix,
                const float* x, float* y)
        : RowStep(dim), ops_(ops), depth_(depth), width_(width), matrix_(matrix), x_(x), y_(y) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const override;

   private:
    const Ops& ops_;
    const std::int64_t depth_;
    const std::int64_t width_;
    const float* matrix_;
    const float* x_;
    float* y_;
};

// cos and sin of position · frequency, times the magnitude: [row][2][pairs]. By libm, so equal for every
// instruction set.
class RopeTableStep final : public RowStep {
   public:
    RopeTableStep(int dim, const std::int32_t* positions, std::vector<float> frequencies, float magnitude,
                  float* table)
        : RowStep(dim),
          positions_(positions),
          frequencies_(std::move(frequencies)),
          magnitude_(magnitude),
          table_(table) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const override;

   private:
    const std::int32_t* positions_;
    const std::vector<float> frequencies_;
    const float magnitude_;
    float* table_;
};

class RopeStep final : public RowStep {
   public:
    RopeStep(const Ops& ops, int dim, std::int64_t heads, std::int64_t size, std::int64_t pairs, bool halves,
             const float* x, const float* table, float* y)
        : RowStep(dim),
          ops_(ops),
          heads_(heads),
          size_(size),
          pairs_(pairs),
          halves_(halves),
          x_(x),
          table_(table),
          y_(y) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const override {
        for (std::int64_t i = begin; i < end; ++i) {
            const float* cos = table_ + i * 2 * pairs_;
            std::int64_t offset = i * heads_ * size_;
            ops_.rope(x_ + offset, cos, cos + pairs_, heads_, size_, pairs_, halves_, y_ + offset);
        }
    }

   private:
    const Ops& ops_;
    const std::int64_t heads_;
    const std::int64_t size_;
    const std::int64_t pairs_;
    const bool halves_;
    const float* x_;
    const float* table_;
    float* y_;
};

// What storing and rotating one head need.
inline std::size_t head_scratch_bytes(const KVStorage& storage) {
    return 2 * align_up(static_cast<std::size_t>(storage.size) * sizeof(float));
}

// Writes each row to the cell of key/value storage that `cells` names.
class StoreStep final : public RowStep {
   public:
    StoreStep(const Ops& ops, int dim, const float* x, const std::int32_t* cells, KVStorage storage)
        : RowStep(dim), ops_(ops), x_(x), cells_(cells), storage_(storage) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const override {
        for (std::int64_t i = begin; i < end; ++i) {
            ops_.store(x_ + i * storage_.heads * storage_.size, storage_, cells_[i],
                       reinterpret_cast<float*>(scratch));
        }
    }
    std::size_t scratch_bytes() const override { return head_scratch_bytes(storage_); }

   private:
    const Ops& ops_;
    const float* x_;
    const std::int32_t* cells_;
    const KVStorage storage_;
};

// Rotates the keys in each of `cells` by the angles in the matching row of a rope table, in place.
class RotateCellsStep final : public RowStep {
   public:
    RotateCellsStep(const Ops& ops, int dim, const std::int32_t* cells, std::int64_t pairs, bool halves,
                    const float* table, KVStorage storage)
        : RowStep(dim),
          ops_(ops),
          cells_(cells),
          pairs_(pairs),
          halves_(halves),
          table_(table),
          storage_(storage) {}
    void run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const override {
        for (std::int64_t i = begin; i < end; ++i) {
            const float* cos = table_ + i * 2 * pairs_;
            ops_.rotate(storage_, cells_[i], cos, cos + pairs_, pairs_, halves_,
                        reinterpret_cast<float*>(scratch));
        }
    }
    std::size_t scratch_bytes() const override { return head_scratch_bytes(storage_); }

   private:
    const Ops& ops_;
    const std::int32_t* cells_;
    const std::int64_t pairs_;
    const bool halves_;
    const float* table_;
    const KVStorage storage_;
};

// Computes nothing: refuses a batch that has an index outside [0, limit) in an input buffer.
class IndexCheckStep final : public Step {
   public:
    IndexCheckStep(std::string name, int dim, const std::int32_t* indices, Extent limit)
        : name_(std::move(name)), dim_(dim), indices_(indices), limit_(limit) {}
    std::int64_t items(const Sizes&) const override { return 0; }
    std::int64_t piece(const Sizes&, std::int64_t, int) const override { return 1; }
    void run(const Sizes&, std::int64_t, std::int64_t, std::byte*) const override {}
    void prepare(const Sizes& sizes) override;

   private:
    const std::string name_;
    const int dim_;
    const std::int32_t* indices_;
    const Extent limit_;
};

}  // namespace chaski
