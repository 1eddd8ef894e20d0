// Thread pools and plans for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "../steps/checks.h"
#include "float_environment.h"
#include "isa.h"
#include "steps/steps.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

using Ints = nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>>;
using Floats = nb::ndarray<nb::numpy, float, nb::ndim<2>>;
using PieceRows = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<2>>;

// Views of the arena that keep the plan alive.
Ints ints(nb::handle self, std::size_t offset, std::size_t count) {
    return Ints(nb::cast<PlanBuilder&>(self).plan().buffer<std::int32_t>(offset, count), {count}, self);
}
Floats floats(nb::handle self, std::size_t offset, std::size_t rows, std::size_t width) {
    float* data = nb::cast<PlanBuilder&>(self).plan().buffer<float>(offset, rows * width);
    return Floats(data, {rows, width}, self);
}

// The upper limit of a dimension, or a fixed size.
void check_indices(PlanBuilder& plan, const std::string& name, int dim, std::size_t indices,
                   std::int64_t limit, std::optional<int> limit_dim) {
    if (limit_dim) plan.require_dim(*limit_dim);
    plan.add(
        std::make_unique<IndexCheckStep>(name, dim, plan.indices(indices, dim), Extent{limit, limit_dim}));
}

// A copy: rows of `Piece`.
PieceRows pieces(const Plan& plan) {
    constexpr std::size_t kFields = sizeof(Piece) / sizeof(std::int64_t);
    auto* all = new std::vector<Piece>(plan.pieces());
    nb::capsule owner(all, [](void* p) noexcept { delete static_cast<std::vector<Piece>*>(p); });
    return PieceRows(reinterpret_cast<std::int64_t*>(all->data()), {all->size(), kFields}, owner);
}

void launch(PlanBuilder& plan, const std::vector<std::int64_t>& sizes) {
    const Unlocked unlocked;
    const UsualFloats usual;
    plan.plan().launch(sizes);
}
std::optional<std::int64_t> read_ahead(PlanBuilder& plan, int descriptor, std::int64_t most) {
    const Unlocked unlocked;
    return plan.plan().read_ahead(descriptor, most);
}
void wait(PlanBuilder& plan) {
    const Unlocked unlocked;
    plan.plan().wait();
}

}  // namespace

void bind_plan(nb::module_& m) {
    m.def("steady_nanoseconds", &steady_nanoseconds, "The clock of pieces.");

    nb::class_<ThreadPool>(m, "ThreadPool")
        .def(nb::init<int>(), "threads"_a)
        .def_prop_ro("threads", &ThreadPool::threads)
        .def("wait", &ThreadPool::wait, nb::call_guard<Unlocked>(), "Waits for what was launched last.");

    nb::class_<VariantPicks>(m, "VariantPicks", "Which variant of a kernel each product takes.")
        .def(
            "__init__",
            [](VariantPicks* self, const std::string& isa, std::optional<std::uint32_t> seed) {
                new (self) VariantPicks(kernels_of(isa), seed);
            },
            "isa"_a, "seed"_a = nb::none())
        .def("pick", &VariantPicks::pick, "type"_a, "token_class"_a, "variant"_a,
             "Picks one by name; False if there is none of that name.")
        .def("settle", &VariantPicks::settle, "Ends all measuring.")
        .def(
            "picks",
            [](const VariantPicks& picks) {
                std::vector<std::tuple<std::string, std::string, std::string>> all;
                for (const auto& pick : picks.picks())
                    all.emplace_back(pick.type, pick.token_class, pick.variant);
                return all;
            },
            "The picks so far: type, class of tokens, variant.")
        .def_prop_ro("measured", &VariantPicks::measured, "How many choices were measured to the end.");

    m.def(
        "quantized_bytes", [](std::size_t count) { return QuantizedLayout(count).bytes; }, "count"_a,
        "Return the bytes of `count` activations as int8 with their scales and sums.");
    nb::class_<PlanBuilder> plan(m, "Plan");
    plan.def(nb::init<std::shared_ptr<ThreadPool>, const std::string&, std::shared_ptr<VariantPicks>,
                      std::size_t, std::vector<std::string>, std::vector<std::int64_t>, bool,
                      std::optional<int>>(),
             "pool"_a, "isa"_a, "picks"_a, "arena_bytes"_a, "dims"_a, "maxima"_a, "in_super_blocks"_a = false,
             "cut_for"_a = nb::none())
        .def("ints", &ints)
        .def("floats", &floats)
        .def("check_indices", &check_indices, "name"_a, "dim"_a, "indices"_a, "limit"_a, "limit_dim"_a);
    bind_attention(m, plan);
    bind_elements(m, plan);
    bind_lora(m, plan);
    bind_moe(plan);
    bind_products(plan);
    bind_recurrent(plan);
    bind_rows(m, plan);
    plan.def("barrier", [](PlanBuilder& p) { p.plan().barrier(); })
        .def("finish", [](PlanBuilder& p) { p.plan().finish(); })
        .def(
            "touch", [](PlanBuilder& p) { p.plan().touch(); }, nb::call_guard<Unlocked>())
        .def("launch", &launch, "sizes"_a)
        .def("wait", &wait)
        .def("read_ahead", &read_ahead, "descriptor"_a, "most"_a,
             "Reads up to `most` bytes of the weights of the next run into the caches. Returns the number of "
             "bytes, or None if it stopped because the descriptor has data to read.")
        .def(
            "trace", [](PlanBuilder& p) { p.plan().trace(); }, "Records the pieces of each later run.")
        .def(
            "pieces", [](PlanBuilder& p) { return pieces(p.plan()); },
            "The pieces of the last run (n, 7), by thread: thread, step, phase, first item, end of the "
            "items, "
            "start and end in nanoseconds.")
        .def_prop_ro("num_steps", [](PlanBuilder& p) { return p.plan().num_steps(); })
        .def_prop_ro("bytes", [](PlanBuilder& p) { return p.plan().bytes(); });
}

}  // namespace chaski
