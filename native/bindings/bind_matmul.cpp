// The matmul kernels by themselves, for tests and benchmarks: one matrix in its own memory, one thread.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checks.h"
#include "float_environment.h"
#include "isa.h"
#include "kernels.h"
#include "memory.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

using FloatsIn = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using VectorIn = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using BytesIn = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IndicesIn = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatsOut = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

FloatsOut new_floats(std::size_t rows, std::size_t columns) {
    auto* data = new float[rows * columns]();
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    return FloatsOut(data, {rows, columns}, owner);
}

class PackedMatrix {
   public:
    PackedMatrix(int type, BytesIn data, std::int64_t rows, std::int64_t k, const std::string& isa)
        : matrix_{static_cast<DType>(type), rows, k, nullptr} {
        require_matrix(type, rows, k);
        const std::int64_t stride = row_bytes(matrix_.type, k);
        require(static_cast<std::int64_t>(data.size()) == rows * stride,
                "pack_matrix: " + std::to_string(data.size()) + " bytes, " + std::to_string(rows) +
                    " rows of " + std::to_string(stride) + " expected");
        memory_ = std::make_unique<Region>(static_cast<std::size_t>(matrix_bytes(matrix_.type, rows, k)));
        auto* panels = reinterpret_cast<std::uint8_t*>(memory_->data());
        kernels_of(isa).pack(matrix_.type, data.data(), stride, rows, k, panels, 0, num_panels(rows));
        matrix_.panels = panels;
    }

    const Matrix& matrix() const { return matrix_; }

    nb::bytes panels() const {
        return nb::bytes(matrix_.panels,
                         static_cast<std::size_t>(matrix_bytes(matrix_.type, matrix_.rows, matrix_.k)));
    }

   private:
    Matrix matrix_;
    std::unique_ptr<Region> memory_;
};

// Activations with the memory they need.
class OwnedActivations {
   public:
    OwnedActivations(const Kernels& kernels, const FloatsIn& x, bool quantize, bool in_super_blocks)
        : n_(static_cast<std::int64_t>(x.shape(0))) {
        const auto k = static_cast<std::int64_t>(x.shape(1));
        activations_ = {nullptr, nullptr, nullptr, x.data()};
        if (!quantize) return;
        values_.resize(x.size());
        scales_.resize(x.size() / 32);
        sums_.resize(x.size() / 16);
        if (in_super_blocks) supers_.resize(x.size() / kSuperElements);
        activations_ = {values_.data(), scales_.data(), sums_.data(), nullptr,
                        in_super_blocks ? supers_.data() : nullptr};
        kernels.quantize_rows(x.data(), n_, k, activations_);
    }
    const Activations& get() const { return activations_; }

   private:
    std::int64_t n_;
    std::vector<std::int8_t> values_;
    std::vector<float> scales_;
    std::vector<std::int16_t> sums_;
    std::vector<SuperScale> supers_;
    Activations activations_;
};

FloatsOut matmul(const PackedMatrix& packed, const FloatsIn& x, const std::string& isa,
                 std::optional<VectorIn> bias, std::optional<FloatsIn> residual, bool in_super_blocks,
                 int variant) {
    const Matrix& w = packed.matrix();
    const auto n = static_cast<std::int64_t>(x.shape(0));
    require(static_cast<std::int64_t>(x.shape(1)) == w.k,
            "matmul: x has " + std::to_string(x.shape(1)) + " columns, the matrix " + std::to_string(w.k));
    require(!bias || static_cast<std::int64_t>(bias->size()) == w.rows,
            "matmul: bias must have one value per row");
    require(!residual ||
                (residual->shape(0) == x.shape(0) && static_cast<std::int64_t>(residual->shape(1)) == w.rows),
            "matmul: residual must have the shape of the result");
    require(!in_super_blocks || w.k % kSuperElements == 0,
            "matmul: " + std::to_string(w.k) + " columns are no multiple of a super-block of 256");
    const Kernels& kernels = kernels_of(isa);
    const std::span<const Variant> variants =
        variants_of(w.type, token_class_of(n), kernels.stream_tokens, kernels.has_tiles);
    require(variant >= 0 && variant < static_cast<int>(variants.size()),
            "matmul: no variant " + std::to_string(variant) + " of " + std::to_string(variants.size()));
    const OwnedActivations activations(kernels, x, is_quantized(w.type),
                                       in_super_blocks || wants_super_blocks(w.type));
    FloatsOut y = new_floats(x.shape(0), static_cast<std::size_t>(w.rows));
    const Output out{y.data(), w.rows, bias ? bias->data() : nullptr, residual ? residual->data() : nullptr};
    const Region scratch(static_cast<std::size_t>(kernels.matmul_scratch_bytes(w, n)) + kAlignment);
    {
        const Unlocked unlocked;
        const UsualFloats usual;
        kernels.matmul(w, 0, num_panels(w.rows), activations.get(), n, out, scratch.data(),
                       variants[variant]);
    }
    return y;
}

FloatsOut unpack_rows(const PackedMatrix& packed, const IndicesIn& rows, const std::string& isa) {
    const Matrix& w = packed.matrix();
    FloatsOut out = new_floats(rows.size(), static_cast<std::size_t>(w.k));
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::int64_t row = rows.data()[i];
        require(row >= 0 && row < w.rows,
                "unpack_rows: row " + std::to_string(row) + " of " + std::to_string(w.rows));
        kernels_of(isa).unpack_row(w, row, out.data() + static_cast<std::int64_t>(i) * w.k);
    }
    return out;
}

std::vector<std::string> names_of_variants(int type, std::int64_t n, const std::string& isa) {
    std::vector<std::string> names;
    const Kernels& kernels = kernels_of(isa);
    for (const Variant& variant :
         variants_of(static_cast<DType>(type), token_class_of(n), kernels.stream_tokens, kernels.has_tiles))
        names.emplace_back(variant.name);
    return names;
}

std::vector<std::string> names_of_isas() {
    std::vector<std::string> names;
    for (std::string_view name : isa_names()) names.emplace_back(name);
    return names;
}

}  // namespace

void bind_matmul(nb::module_& m) {
    m.def("rule_version", [] { return kRuleVersion; });
    nb::class_<PackedMatrix>(m, "PackedMatrix",
                             "A weight matrix in the layout of the kernels, with its memory.")
        .def_prop_ro("rows", [](const PackedMatrix& p) { return p.matrix().rows; })
        .def_prop_ro("k", [](const PackedMatrix& p) { return p.matrix().k; })
        .def("panels", &PackedMatrix::panels, "A copy of the packed bytes.");
    m.def(
        "pack_matrix",
        [](int type, const BytesIn& data, std::int64_t rows, std::int64_t k, const std::string& isa) {
            return std::make_shared<PackedMatrix>(type, data, rows, k, isa);
        },
        "type"_a, "data"_a, "rows"_a, "k"_a, "isa"_a = "auto",
        "Packs rows of a GGUF tensor: type by its number in the format, data as in the file.");
    m.def("matmul", &matmul, "matrix"_a, "x"_a, "isa"_a = "auto", "bias"_a = nb::none(),
          "residual"_a = nb::none(), "in_super_blocks"_a = false, "variant"_a = 0,
          "x (n, k) times the matrix, transposed: (n, rows), plus bias (rows), plus residual (n, rows). "
          "In super-blocks: x is rounded as for Q2_K to Q6_K, whatever the matrix's type. "
          "Variant: one of variant_names by its number; its results are the same bits.");
    m.def(
        "variant_names", &names_of_variants, "type"_a, "tokens"_a, "isa"_a = "auto",
        "The variants of products of quantized weights of a type, given by number, for a number of tokens.");
    m.def("unpack_rows", &unpack_rows, "matrix"_a, "rows"_a, "isa"_a = "auto",
          "Dequantized rows: (len(rows), k).");
    m.def("isa_names", &names_of_isas,
          "Instruction sets of this build that this machine has, slowest first.");
}

}  // namespace chaski
