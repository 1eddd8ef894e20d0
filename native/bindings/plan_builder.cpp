#include "plan_builder.h"

#include "isa.h"

namespace chaski {

PlanBuilder::PlanBuilder(std::shared_ptr<ThreadPool> pool, const std::string& isa,
                         std::shared_ptr<VariantPicks> picks, std::size_t arena_bytes,
                         std::vector<std::string> dims, std::vector<std::int64_t> maxima,
                         bool in_super_blocks, std::optional<int> cut_for)
    : in_super_blocks_(in_super_blocks),
      kernels_(kernels_of(isa)),
      ops_(ops_of(isa)),
      picks_(std::move(picks)),
      plan_(std::make_shared<Plan>(std::move(pool), arena_bytes, std::move(dims), std::move(maxima),
                                   cut_for)) {}

void PlanBuilder::require_dim(int dim) const {
    require(dim >= 0 && dim < static_cast<int>(plan_->maxima().size()),
            "plan: dimension " + std::to_string(dim) + " is not declared");
}

std::int64_t PlanBuilder::maximum(int dim) const {
    require_dim(dim);
    return plan_->maxima()[dim];
}

const float* PlanBuilder::optional_vector(const Weights* weights, Optional place, std::int64_t size) {
    return place ? vector(weights, *place, size) : nullptr;
}

const float* PlanBuilder::vector(const Weights* weights, std::size_t place, std::int64_t size) {
    require(weights != nullptr && size > 0, "plan: a vector is missing");
    held_.push_back(weights->memory());
    return weights->vector(place, static_cast<std::size_t>(size));
}

Activations PlanBuilder::quantized(std::size_t offset, int dim, std::int64_t width, std::int64_t k) {
    require(k > 0 && k % 32 == 0,
            "quantized activations come in blocks of 32, not in rows of " + std::to_string(k));
    require(width > 0 && width % k == 0, "plan: quantized activations of some rows and a part of one");
    const auto count = static_cast<std::size_t>(maximum(dim) * width);
    const QuantizedLayout layout(count);
    const bool is_super = in_super_blocks_ && k % kSuperElements == 0;
    return {plan_->buffer<std::int8_t>(offset, count),
            plan_->buffer<float>(offset + layout.scales, count / 32),
            plan_->buffer<std::int16_t>(offset + layout.sums, count / 16), nullptr,
            is_super ? plan_->buffer<SuperScale>(offset + layout.supers, count / kSuperElements) : nullptr};
}

Quantizer PlanBuilder::quantizer(Optional offset, int dim, std::int64_t width, std::int64_t k) {
    return {kernels_, offset ? quantized(*offset, dim, width, k) : Activations{}};
}

Activations PlanBuilder::activations(const Matrix& matrix, Optional x, Optional quantized_x, int dim,
                                     std::int64_t width) {
    if (is_quantized(matrix.type)) {
        require(quantized_x.has_value(), "plan: quantized activations are missing");
        const Activations rows = quantized(*quantized_x, dim, width, matrix.k);
        require(rows.supers != nullptr || !wants_super_blocks(matrix.type),
                "plan: a matrix of that type wants activations in super-blocks");
        return rows;
    }
    require(x.has_value(), "plan: activations are missing");
    return {nullptr, nullptr, nullptr, floats(*x, dim, width)};
}

Multiplier PlanBuilder::multiplier(const Matrix& matrix) {
    const std::int64_t number = products_[{matrix.type, matrix.rows, matrix.k}]++;
    return {kernels_, picks_, number};
}

const KVStorage& PlanBuilder::held(const OwnedStorage& storage) {
    held_.push_back(storage.memory);
    return storage.storage;
}

std::shared_ptr<Tiles> PlanBuilder::new_tiles() { return tiles_.emplace_back(std::make_shared<Tiles>()); }

std::shared_ptr<const Tiles> PlanBuilder::tiles(int index) const {
    require(index >= 0 && index < num_tiles(), "plan: no tiles " + std::to_string(index));
    return tiles_[index];
}

std::shared_ptr<const LoraRows> PlanBuilder::lora_rows(int index) const {
    require(index >= 0 && index < static_cast<int>(lora_rows_.size()),
            "plan: no rows sorted by adapter " + std::to_string(index));
    return lora_rows_[index];
}

}  // namespace chaski
