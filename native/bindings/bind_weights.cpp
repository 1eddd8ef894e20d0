// The weights of a model for Python: made here, loaded from files, used by plans.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "isa.h"
#include "model_weights.h"
#include "weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

using Vector = nb::ndarray<nb::numpy, float, nb::ndim<1>>;

// A view that keeps the weights alive.
Vector vector(nb::handle self, std::size_t offset, std::size_t size) {
    return Vector(nb::cast<Weights&>(self).vector(offset, size), {size}, self);
}

void load(ThreadPool& pool, const std::string& isa,
          const std::vector<std::tuple<int, std::int64_t, OwnedMatrix>>& list) {
    std::vector<MatrixSource> sources;
    for (const auto& [descriptor, offset, owned] : list) {
        sources.push_back({descriptor, offset, owned.matrix, const_cast<std::uint8_t*>(owned.matrix.panels)});
    }
    nb::gil_scoped_release release;
    load_matrices(pool, kernels_of(isa), sources);
}

std::vector<int> matrix_types() {
    std::vector<int> types;
    for (const BlockFormat& format : kFormats) types.push_back(static_cast<int>(format.type));
    return types;
}

}  // namespace

void bind_weights(nb::module_& m) {
    nb::class_<OwnedMatrix>(m, "WeightMatrix")
        .def_prop_ro("type", [](const OwnedMatrix& w) { return static_cast<int>(w.matrix.type); })
        .def_prop_ro("rows", [](const OwnedMatrix& w) { return w.matrix.rows; })
        .def_prop_ro("columns", [](const OwnedMatrix& w) { return w.matrix.k; });

    nb::class_<Weights>(m, "Weights")
        .def(nb::init<std::size_t>(), "bytes"_a)
        .def("matrix", &Weights::matrix, "offset"_a, "type"_a, "rows"_a, "columns"_a)
        .def("vector", &vector, "offset"_a, "size"_a);

    m.def(
        "matrix_bytes",
        [](int type, std::int64_t rows, std::int64_t k) {
            return matrix_bytes(format_of(type).type, rows, k);
        },
        "type"_a, "rows"_a, "columns"_a);
    m.def("is_quantized", [](int type) { return is_quantized(static_cast<DType>(type)); }, "type"_a);
    m.def("matrix_types", &matrix_types);
    m.def("load_matrices", &load, "pool"_a, "isa"_a, "sources"_a);
}

}  // namespace chaski
