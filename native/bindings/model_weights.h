// The weights of a model as Python owns them: one memory block that contains all matrices and vectors.
#pragma once

#include <memory>

#include "checks.h"
#include "weights.h"

namespace chaski {

class Weights {
   public:
    explicit Weights(std::size_t bytes) : memory_(std::make_shared<Region>(bytes)) {}

    // Shared memory, which is written through another mapping.
    Weights(std::size_t bytes, int descriptor)
        : memory_(std::make_shared<Region>(bytes, descriptor, 0, Access::kRead)) {}

    // `stride` and `is_interleaved` describe the layout of the rows in the file, see Origin.
    OwnedMatrix matrix(std::size_t offset, int type, std::int64_t rows, std::int64_t k, std::int64_t stride,
                       bool is_interleaved) const {
        require_matrix(type, rows, k);
        auto dtype = static_cast<DType>(type);
        require(stride >= row_bytes(dtype, k), "weights: rows overlap in their file");
        require(!is_interleaved || dtype == DType::MXFP4, "weights: only MXFP4 may be interleaved");
        auto* panels = place(offset, static_cast<std::size_t>(matrix_bytes(dtype, rows, k)));
        auto origin = std::make_shared<Origin>();
        origin->stride = stride;
        origin->is_interleaved = is_interleaved;
        return {{dtype, rows, k, reinterpret_cast<const std::uint8_t*>(panels)}, memory_, origin};
    }

    float* vector(std::size_t offset, std::size_t size) const {
        return reinterpret_cast<float*>(place(offset, size * sizeof(float)));
    }

    const std::shared_ptr<Region>& memory() const { return memory_; }

   private:
    std::byte* place(std::size_t offset, std::size_t bytes) const {
        require(offset % kAlignment == 0 && offset <= memory_->size() && bytes <= memory_->size() - offset,
                "weights: " + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                    " are outside " + std::to_string(memory_->size()));
        return memory_->data() + offset;
    }

    std::shared_ptr<Region> memory_;
};

}  // namespace chaski
