// The weights of a model for Python: loads them from files for plans.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "isa.h"
#include "model_weights.h"
#include "shared_memory.h"
#include "unlocked.h"
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

// Makes steps read the matrix from this place until it is laid out in memory.
void take_from(const OwnedMatrix& weight, std::shared_ptr<WeightFile> file, std::int64_t offset) {
    require(offset >= 0, "weights: no place in a file is " + std::to_string(offset));
    weight.origin->file = std::move(file);
    weight.origin->offset = offset;
    weight.origin->is_laid_out.store(false);
}

void require_files(const std::vector<OwnedMatrix>& weights) {
    for (const OwnedMatrix& weight : weights) {
        require(weight.origin->file != nullptr, "weights: a matrix comes from no file");
    }
}

void start_reading(WeightStream& stream, std::int64_t bytes, const std::vector<OwnedMatrix>& weights,
                   int readers) {
    require(readers > 0, "weights: no readers");
    start_stream(stream, bytes, weights, readers);
}

void set_order(const std::shared_ptr<WeightStream>& stream, const std::vector<OwnedMatrix>& weights) {
    require_files(weights);
    const Unlocked unlocked;
    stream_in_order(stream, weights);
}

void release_matrix(const OwnedMatrix& weight) {
    require(weight.origin->file != nullptr, "weights: a matrix comes from no file");
    release(weight);
}

// The first rows of a matrix, in the same memory. They must fill whole groups of panels.
OwnedMatrix first_rows(const OwnedMatrix& weight, std::int64_t rows) {
    const std::int64_t group = kLanes * interleaved_panels(weight.matrix.type);
    require(rows > 0 && rows <= weight.matrix.rows && rows % group == 0,
            "weights: " + std::to_string(rows) + " rows are no part of a matrix of " +
                std::to_string(weight.matrix.rows));
    OwnedMatrix part = weight;
    part.matrix.rows = rows;
    return part;
}

void lay_out_all(ThreadPool& pool, const std::string& isa, const std::vector<OwnedMatrix>& weights,
                 std::optional<int> shared) {
    require_files(weights);
    const Unlocked unlocked;
    lay_out(pool, kernels_of(isa), weights, shared);
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
        .def_prop_ro("columns", [](const OwnedMatrix& w) { return w.matrix.k; })
        .def("first_rows", &first_rows, "rows"_a)
        .def("take_from", &take_from, "file"_a, "offset"_a)
        .def("release", &release_matrix)
        .def("set_laid_out", [](const OwnedMatrix& w) { w.origin->is_laid_out.store(true); });

    nb::class_<WeightFile>(m, "WeightFile")
        .def(nb::init<int>(), "descriptor"_a)
        .def_prop_ro("error", &WeightFile::error)
        .def_prop_ro("identity", &WeightFile::identity)
        .def("resident_share", &WeightFile::resident_share, "offset"_a, "bytes"_a)
        .def("read_only_requested", &WeightFile::read_only_requested)
        .def("read_ahead", &WeightFile::read_ahead, "offset"_a, "bytes"_a, nb::call_guard<Unlocked>(),
             "Asks the system to read these bytes into memory, without waiting.");

    nb::class_<WeightStream>(m, "WeightStream")
        .def(nb::init<int>(), "threads"_a)
        .def_prop_ro("bytes", &WeightStream::bytes)
        .def("start", &start_reading, "bytes"_a, "matrices"_a, "readers"_a,
             "Reserves about that much memory for any of these matrices, and starts to read.")
        .def("set", &set_order, "matrices"_a, "Sets the matrices that every pass reads, in its order.")
        .def("stop", &WeightStream::stop, nb::call_guard<Unlocked>());

    nb::class_<Weights>(m, "Weights")
        .def(nb::init<std::size_t>(), "bytes"_a)
        .def(nb::init<std::size_t, int>(), "bytes"_a, "descriptor"_a)
        .def("matrix", &Weights::matrix, "offset"_a, "type"_a, "rows"_a, "columns"_a, "stride"_a,
             "is_interleaved"_a)
        .def("vector", &vector, "offset"_a, "size"_a);

    m.def("can_share_huge_pages", &can_share_huge_pages);

    m.def(
        "matrix_bytes",
        [](int type, std::int64_t rows, std::int64_t k) {
            return matrix_bytes(format_of(type).type, rows, k);
        },
        "type"_a, "rows"_a, "columns"_a);
    m.def("is_quantized", [](int type) { return is_quantized(static_cast<DType>(type)); }, "type"_a);
    m.def(
        "wants_super_blocks", [](int type) { return wants_super_blocks(static_cast<DType>(type)); }, "type"_a,
        "Whether products with that type want activations in super-blocks of 256.");
    m.def("matrix_types", &matrix_types);
    m.def("lay_out", &lay_out_all, "pool"_a, "isa"_a, "matrices"_a, "shared"_a = nb::none());
}

}  // namespace chaski
