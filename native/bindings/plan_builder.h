// Builds a plan for Python: turns arena offsets into typed pointers. It checks every offset and size once;
// steps/ binds the steps.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "../steps/adapters.h"
#include "../steps/attention.h"
#include "../steps/matmul.h"
#include "../steps/quantizer.h"
#include "model_weights.h"
#include "storage.h"

namespace chaski {

// The offsets of the parts of `count` quantized activations, in bytes from their values; each is 64-byte
// aligned.
struct QuantizedLayout {
    std::size_t scales, sums, supers, bytes;

    explicit QuantizedLayout(std::size_t count)
        : scales(align_up(count)),
          sums(scales + align_up(count / 32 * sizeof(float))),
          supers(sums + align_up(count / 16 * sizeof(std::int16_t))),
          bytes(supers + align_up(count / kSuperElements * sizeof(SuperScale))) {}
};

// An optional offset in the arena, or an optional place of a vector in the weights.
using Optional = std::optional<std::size_t>;

// Activations are float32 rows [row][width]; the maximum of a run-time dimension is their number of rows.
class PlanBuilder {
   public:
    // `cut_for`: see Plan.
    PlanBuilder(std::shared_ptr<ThreadPool> pool, const std::string& isa, std::shared_ptr<VariantPicks> picks,
                std::size_t arena_bytes, std::vector<std::string> dims, std::vector<std::int64_t> maxima,
                bool in_super_blocks, std::optional<int> cut_for);

    Plan& plan() { return *plan_; }
    const Kernels& kernels() const { return kernels_; }
    const Ops& ops() const { return ops_; }

    // Throw std::invalid_argument for a dimension that is not declared.
    void require_dim(int dim) const;
    std::int64_t maximum(int dim) const;

    // The buffer at an offset, checked for the largest run.
    template <class T>
    T* rows(std::size_t offset, int dim, std::int64_t width) {
        require(width > 0, "plan: a row must have elements");
        return plan_->buffer<T>(offset, static_cast<std::size_t>(maximum(dim) * width));
    }
    float* floats(std::size_t offset, int dim, std::int64_t width) { return rows<float>(offset, dim, width); }
    const std::int32_t* indices(std::size_t offset, int dim) { return rows<std::int32_t>(offset, dim, 1); }

    // Null without an offset.
    float* optional_floats(Optional offset, int dim, std::int64_t width) {
        return offset ? floats(*offset, dim, width) : nullptr;
    }
    // A vector of the weights; null without a place.
    const float* optional_vector(const Weights* weights, Optional place, std::int64_t size);
    const float* vector(const Weights* weights, std::size_t place, std::int64_t size);

    // The quantized form of rows of `width` elements, each of which contains one or several rows of k
    // elements that products read. It is in super-blocks if the plan uses them and k is a multiple of their
    // size, because no super-block may contain elements of two rows.
    Activations quantized(std::size_t offset, int dim, std::int64_t width, std::int64_t k);
    // Rounds a step's result; without an offset it does nothing.
    Quantizer quantizer(Optional offset, int dim, std::int64_t width, std::int64_t k);
    // The operand of a matrix: the float rows `x`, or, if it is quantized, their int8 form; the other may be
    // absent.
    Activations activations(const Matrix& matrix, Optional x, Optional quantized_x, int dim,
                            std::int64_t width);

    // The multiplier with the number for products with matrices of this shape.
    Multiplier multiplier(const Matrix& matrix);

    // Returns the storage. The plan keeps it alive.
    const KVStorage& held(const OwnedStorage& storage);

    // Tiles are numbered in the order in which they are added.
    std::shared_ptr<Tiles> new_tiles();
    std::shared_ptr<const Tiles> tiles(int index) const;
    int num_tiles() const { return static_cast<int>(tiles_.size()); }

    // Rows sorted by adapter are numbered in the order in which they are added.
    std::shared_ptr<LoraRows> new_lora_rows() {
        return lora_rows_.emplace_back(std::make_shared<LoraRows>());
    }
    std::shared_ptr<const LoraRows> lora_rows(int index) const;

    void add(std::unique_ptr<Step> step) { plan_->add(std::move(step)); }

   private:
    const bool in_super_blocks_;  // for quantized activations whose rows are whole super-blocks
    const Kernels& kernels_;
    const Ops& ops_;
    const std::shared_ptr<VariantPicks> picks_;
    std::map<std::tuple<DType, std::int64_t, std::int64_t>, std::int64_t> products_;  // by shape
    std::vector<std::shared_ptr<Region>> held_;
    std::vector<std::shared_ptr<Tiles>> tiles_;
    std::vector<std::shared_ptr<LoraRows>> lora_rows_;
    std::shared_ptr<Plan> plan_;
};

}  // namespace chaski
