// Experts that are read from their files into a bounded memory, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "expert_stack.h"
#include "isa.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

std::shared_ptr<ExpertStore> make_store(const std::string& isa) {
    return std::make_shared<ExpertStore>(kernels_of(isa));
}

ExpertStack add_stack(std::shared_ptr<ExpertStore> store, int layer, int type, std::int64_t rows,
                      std::int64_t columns, std::int64_t stride, bool is_interleaved,
                      std::vector<std::int64_t> offsets, std::shared_ptr<DirectFile> file) {
    require_matrix(type, rows, columns);
    const auto dtype = static_cast<DType>(type);
    require(stride >= row_bytes(dtype, columns), "experts: rows overlap in their file");
    require(!is_interleaved || dtype == DType::MXFP4, "experts: only MXFP4 may be interleaved");
    require(!offsets.empty() && *std::min_element(offsets.begin(), offsets.end()) >= 0,
            "experts: no place in a file");
    const int number = store->add(
        {layer, dtype, rows, columns, stride, is_interleaved, std::move(offsets), std::move(file)});
    return {std::move(store), number};
}

void start(ExpertStore& store, std::int64_t bytes, int readers, int patience) {
    require(readers > 0 && patience >= 0 && store.total_bytes() > 0, "experts: no readers or no experts");
    store.start(bytes, readers, std::chrono::milliseconds(patience));
}

std::tuple<int, std::int64_t, std::int64_t, std::int64_t, std::int64_t> counts(const ExpertStack& of) {
    const StackCounts counts = of.store->counts(of.number);
    return {of.stack().layer, counts.requests, counts.hits, counts.bytes_read, counts.slots};
}

// The number of a stack that the last batch could not read, the error, and the rows that needed it.
using Missing = std::tuple<int, int, std::vector<std::pair<int, std::int64_t>>>;

std::optional<Missing> take_missing(ExpertStore& store) {
    const std::optional<MissingRows> found = store.take_missing();
    if (!found) return std::nullopt;
    return Missing{found->stack, found->error, {found->rows.begin(), found->rows.end()}};
}

}  // namespace

void bind_experts(nb::module_& m) {
    nb::class_<DirectFile>(m, "DirectFile").def(nb::init<int>(), "descriptor"_a);

    nb::class_<ExpertStore>(m, "ExpertStore")
        .def("add", &add_stack, "layer"_a, "type"_a, "rows"_a, "columns"_a, "stride"_a, "is_interleaved"_a,
             "offsets"_a, "file"_a)
        .def_prop_ro("total_bytes", &ExpertStore::total_bytes)
        .def_prop_ro("least_bytes", &ExpertStore::least_bytes)
        .def_prop_ro("filled_bytes", &ExpertStore::filled_bytes, "The bytes of memory that contain experts.")
        .def("start", &start, "bytes"_a, "readers"_a, "patience"_a,
             "A batch tries failed reads again for up to `patience` milliseconds.")
        .def("resize", &ExpertStore::resize, "bytes"_a, nb::call_guard<Unlocked>())
        .def("stop", &ExpertStore::stop, nb::call_guard<Unlocked>())
        .def("take_missing", &take_missing,
             "The number of a stack that the last batch could not read, the error, and each row that lacked "
             "an "
             "expert, with the number of its dimension; None if nothing was missing.");
    m.def("expert_store", &make_store, "isa"_a);

    nb::class_<ExpertStack>(m, "ExpertStack")
        .def_prop_ro("type", [](const ExpertStack& s) { return static_cast<int>(s.stack().type); })
        .def_prop_ro("rows", [](const ExpertStack& s) { return s.stack().rows; })
        .def_prop_ro("columns", [](const ExpertStack& s) { return s.stack().k; })
        .def("__len__", [](const ExpertStack& s) { return s.stack().offsets.size(); })
        .def_prop_ro("counts", &counts,
                     "Its layer, the matrices that were requested, those in memory, bytes read, and slots.");
}

}  // namespace chaski
