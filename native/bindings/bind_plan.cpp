// Thread pools and plans for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "../steps/checks.h"
#include "steps/steps.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

using Ints = nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>>;
using Floats = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

// Views of the arena that keep the plan alive.
Ints ints(nb::handle self, std::size_t offset, std::size_t count) {
    return Ints(nb::cast<PlanBuilder&>(self).plan().buffer<std::int32_t>(offset, count), {count}, self);
}
Floats floats(nb::handle self, std::size_t offset, std::size_t rows, std::size_t width) {
    float* data = nb::cast<PlanBuilder&>(self).plan().buffer<float>(offset, rows * width);
    return Floats(data, {rows, width}, self);
}

// The limit is that of the dimension, or a fixed one.
void check_indices(PlanBuilder& plan, const std::string& name, int dim, std::size_t indices,
                   std::int64_t limit, std::optional<int> limit_dim) {
    if (limit_dim) plan.require_dim(*limit_dim);
    plan.add(
        std::make_unique<IndexCheckStep>(name, dim, plan.indices(indices, dim), Extent{limit, limit_dim}));
}

void launch(PlanBuilder& plan, const std::vector<std::int64_t>& sizes) {
    nb::gil_scoped_release release;
    plan.plan().launch(sizes);
}
void wait(PlanBuilder& plan) {
    nb::gil_scoped_release release;
    plan.plan().wait();
}

}  // namespace

void bind_plan(nb::module_& m) {
    nb::class_<ThreadPool>(m, "ThreadPool")
        .def(nb::init<int>(), "threads"_a)
        .def_prop_ro("threads", &ThreadPool::threads);

    m.def(
        "quantized_bytes", [](std::size_t count) { return QuantizedLayout(count).bytes; }, "count"_a,
        "What so many activations take as int8 with their scales and sums.");
    nb::class_<PlanBuilder> plan(m, "Plan");
    plan.def(nb::init<std::shared_ptr<ThreadPool>, const std::string&, std::size_t, std::vector<std::string>,
                      std::vector<std::int64_t>, bool>(),
             "pool"_a, "isa"_a, "arena_bytes"_a, "dims"_a, "maxima"_a, "in_super_blocks"_a = false)
        .def("ints", &ints)
        .def("floats", &floats)
        .def("check_indices", &check_indices, "name"_a, "dim"_a, "indices"_a, "limit"_a, "limit_dim"_a);
    bind_attention(m, plan);
    bind_elements(m, plan);
    bind_moe(plan);
    bind_products(plan);
    bind_recurrent(plan);
    bind_rows(m, plan);
    plan.def("barrier", [](PlanBuilder& p) { p.plan().barrier(); })
        .def("finish", [](PlanBuilder& p) { p.plan().finish(); })
        .def(
            "touch", [](PlanBuilder& p) { p.plan().touch(); }, nb::call_guard<nb::gil_scoped_release>())
        .def("launch", &launch, "sizes"_a)
        .def("wait", &wait)
        .def_prop_ro("bytes", [](PlanBuilder& p) { return p.plan().bytes(); });
}

}  // namespace chaski
