// Key/value storage for Python: made here, used by plans.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <vector>

#include "checks.h"
#include "isa.h"
#include "storage.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

using Rows = nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig>;

bool can_store(int type) {
    auto dtype = static_cast<DType>(type);
    return dtype == DType::F32 || dtype == DType::F16 || dtype == DType::BF16 || dtype == DType::I16 ||
           dtype == DType::Q8_0 || dtype == DType::Q4_0;
}

std::size_t storage_bytes(std::int64_t cells, std::int64_t heads, std::int64_t size, int type,
                          bool in_panels) {
    require(cells > 0 && heads > 0 && size > 0 && cells < (std::int64_t{1} << 31),
            "key/value storage: sizes must be positive");
    require(can_store(type), "key/value storage: type " + std::to_string(type) + " cannot be stored");
    auto dtype = static_cast<DType>(type);
    require(size % find_format(dtype)->elements == 0,
            "key/value storage: heads of " + std::to_string(size) + " are not whole blocks");
    KVStorage shape{nullptr, cells, heads, size, dtype, in_panels};
    return static_cast<std::size_t>(heads * shape.head_bytes()) + kStorageSlack;
}

OwnedStorage make_storage(std::int64_t cells, std::int64_t heads, std::int64_t size, int type,
                          bool in_panels) {
    auto memory = std::make_shared<Region>(storage_bytes(cells, heads, size, type, in_panels));
    return {{memory->data(), cells, heads, size, static_cast<DType>(type), in_panels}, memory};
}

void read_cell(const OwnedStorage& owned, const std::string& isa, std::int64_t cell, const Rows& out) {
    const KVStorage& storage = owned.storage;
    require(cell >= 0 && cell < storage.cells, "key/value storage: no cell " + std::to_string(cell));
    require(out.shape(0) == static_cast<std::size_t>(storage.heads) &&
                out.shape(1) == static_cast<std::size_t>(storage.size),
            "key/value storage: the array has another shape than a cell");
    std::vector<float> scratch(2 * align_up(storage.size));
    ops_of(isa).load(storage, cell, out.data(), scratch.data());
}

}  // namespace

void bind_storage(nb::module_& m) {
    nb::class_<OwnedStorage>(m, "KVStorage")
        .def_prop_ro("bytes", [](const OwnedStorage& s) { return s.memory->size(); })
        .def(
            "touch", [](const OwnedStorage& s) { s.memory->touch(); },
            nb::call_guard<nb::gil_scoped_release>())
        .def("read", &read_cell, "isa"_a, "cell"_a, "out"_a);
    m.def("kv_storage", &make_storage, "cells"_a, "heads"_a, "size"_a, "type"_a, "in_panels"_a);
    m.def("kv_storage_bytes", &storage_bytes, "cells"_a, "heads"_a, "size"_a, "type"_a, "in_panels"_a);
}

}  // namespace chaski
