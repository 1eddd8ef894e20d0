#include "../../steps/elements.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "../../steps/streams.h"
#include "isa.h"
#include "steps.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

template <class F>
void add_norm(PlanBuilder& plan, int dim, std::int64_t heads, std::int64_t size, std::size_t x, std::size_t y,
              Optional quantized, std::int64_t k, F normalize) {
    require(heads > 0, "norm: no heads");
    std::int64_t width = heads * size;
    plan.add(norm(dim, heads, size, plan.floats(x, dim, width), plan.floats(y, dim, width),
                  plan.quantizer(quantized, dim, width, k), normalize));
}

// Without `weight`, a weight of 1 is used.
void add_rms_norm(PlanBuilder& plan, int dim, const Weights* weights, Optional weight, std::int64_t heads,
                  std::int64_t size, float eps, std::size_t x, std::size_t y, Optional quantized,
                  std::int64_t k) {
    const float* w = plan.optional_vector(weights, weight, size);
    add_norm(plan, dim, heads, size, x, y, quantized, k,
             [&ops = plan.ops(), w, eps, size](const float* row, float* result) {
                 ops.rms_norm(row, w, eps, size, result);
             });
}

void add_layer_norm(PlanBuilder& plan, int dim, const Weights* weights, std::size_t weight, Optional bias,
                    std::int64_t heads, std::int64_t size, float eps, std::size_t x, std::size_t y,
                    Optional quantized, std::int64_t k) {
    const float* w = plan.vector(weights, weight, size);
    const float* b = plan.optional_vector(weights, bias, size);
    add_norm(plan, dim, heads, size, x, y, quantized, k,
             [&ops = plan.ops(), w, b, eps, size](const float* row, float* result) {
                 ops.layer_norm(row, w, b, eps, size, result);
             });
}

// All operands are rows of the same width.
void add_elementwise(PlanBuilder& plan, const std::string& op, int dim, std::int64_t width,
                     const std::vector<std::size_t>& operands, std::vector<float> parameters, std::size_t y,
                     Optional quantized, std::int64_t k) {
    const Elementwise& found = find_elementwise(plan.ops(), op);
    require(static_cast<int>(operands.size()) == found.operands &&
                static_cast<int>(parameters.size()) == found.parameters,
            op + ": not its number of operands or parameters");
    std::vector<const float*> places;
    for (std::size_t x : operands) places.push_back(plan.floats(x, dim, width));
    plan.add(elementwise(found, dim, width, places, std::move(parameters), plan.floats(y, dim, width),
                         plan.quantizer(quantized, dim, width, k)));
}

// All operations with their numbers of operands and parameters.
std::map<std::string, std::pair<int, int>> elementwise_operations() {
    std::map<std::string, std::pair<int, int>> found;
    for (const Elementwise* op = ops_of("auto").elementwise; op->name != nullptr; ++op) {
        found[op->name] = {op->operands, op->parameters};
    }
    return found;
}

// An operation with two operands. The second one is a vector of the weights, used for every row.
void add_by_vector(PlanBuilder& plan, const std::string& op, int dim, std::int64_t width,
                   const Weights* weights, std::size_t vector, std::size_t x, std::size_t y) {
    const Elementwise& found = find_elementwise(plan.ops(), op);
    require(found.operands == 2 && found.parameters == 0, op + ": not an operation of two operands alone");
    const float* v = plan.vector(weights, vector, width);
    add_norm(plan, dim, 1, width, x, y, std::nullopt, width,
             [&found, v, width](const float* row, float* result) {
                 const float* operands[] = {row, v};
                 found.apply(operands, nullptr, width, result);
             });
}

void add_scale_rows(PlanBuilder& plan, int dim, std::int64_t parts, std::int64_t width, std::size_t x,
                    std::size_t factors, std::size_t y) {
    plan.add(scale_rows(plan.ops(), dim, parts, width, plan.floats(x, dim, parts * width),
                        plan.floats(factors, dim, parts), plan.floats(y, dim, parts * width)));
}

// One factor for each head.
void add_scale_heads(PlanBuilder& plan, int dim, std::int64_t size, std::vector<float> factors, std::size_t x,
                     std::size_t y) {
    const auto heads = static_cast<std::int64_t>(factors.size());
    add_norm(plan, dim, 1, heads * size, x, y, std::nullopt, heads * size,
             [&ops = plan.ops(), factors = std::move(factors), heads, size](const float* row, float* result) {
                 for (std::int64_t head = 0; head < heads; ++head) {
                     ops.scale(row + head * size, factors[head], size, result + head * size);
                 }
             });
}

void add_head_sums(PlanBuilder& plan, int dim, std::int64_t heads, std::int64_t size, std::size_t x,
                   std::size_t y) {
    plan.add(head_sums(dim, heads, size, plan.floats(x, dim, heads * size), plan.floats(y, dim, heads)));
}

void add_mix_streams(PlanBuilder& plan, int dim, std::int64_t streams, std::int64_t outputs,
                     std::int64_t size, std::size_t x, std::size_t weights, std::size_t y) {
    require(streams > 0 && outputs > 0, "mix_streams: no streams");
    plan.add(mix_streams(plan.ops(), dim, streams, outputs, size, plan.floats(x, dim, streams * size),
                         plan.floats(weights, dim, streams * outputs), plan.floats(y, dim, outputs * size)));
}

void add_sinkhorn(PlanBuilder& plan, int dim, std::int64_t size, std::int64_t iterations, float eps,
                  std::size_t x, std::size_t y) {
    require(size > 0 && iterations > 0, "sinkhorn: no rows or no iterations");
    plan.add(sinkhorn(plan.ops(), dim, size, iterations, eps, plan.floats(x, dim, size * size),
                      plan.floats(y, dim, size * size)));
}

void add_rms(PlanBuilder& plan, int dim, std::int64_t width, std::size_t x, std::size_t y) {
    require(width > 0, "rms: no elements");
    plan.add(rms(dim, width, plan.floats(x, dim, width), plan.floats(y, dim, 1)));
}

void add_gaussian_top_k(PlanBuilder& plan, int dim, std::int64_t width, float multiplier, std::size_t x,
                        std::size_t y) {
    require(width > 0, "gaussian_top_k: no elements");
    plan.add(gaussian_top_k(dim, width, multiplier, plan.floats(x, dim, width), plan.floats(y, dim, width)));
}

void add_position_scale(PlanBuilder& plan, int dim, std::size_t positions, std::int64_t length, double beta,
                        std::int64_t offset, std::size_t y) {
    require(length > 0 && offset >= 0, "position_scale: bad length or offset");
    plan.add(position_scale(dim, plan.indices(positions, dim), length, beta, offset, plan.floats(y, dim, 1)));
}

}  // namespace

void bind_elements(nb::module_& m, nb::class_<PlanBuilder>& plan) {
    m.def("elementwise_operations", &elementwise_operations);
    plan.def("rms_norm", &add_rms_norm, "dim"_a, "weights"_a.none(), "weight"_a, "heads"_a, "size"_a, "eps"_a,
             "x"_a, "y"_a, "quantized"_a, "k"_a)
        .def("layer_norm", &add_layer_norm, "dim"_a, "weights"_a.none(), "weight"_a, "bias"_a, "heads"_a,
             "size"_a, "eps"_a, "x"_a, "y"_a, "quantized"_a, "k"_a)
        .def("elementwise", &add_elementwise, "op"_a, "dim"_a, "width"_a, "operands"_a, "parameters"_a, "y"_a,
             "quantized"_a, "k"_a)
        .def("by_vector", &add_by_vector, "op"_a, "dim"_a, "width"_a, "weights"_a.none(), "vector"_a, "x"_a,
             "y"_a)
        .def("scale_rows", &add_scale_rows, "dim"_a, "parts"_a, "width"_a, "x"_a, "factors"_a, "y"_a)
        .def("scale_heads", &add_scale_heads, "dim"_a, "size"_a, "factors"_a, "x"_a, "y"_a)
        .def("head_sums", &add_head_sums, "dim"_a, "heads"_a, "size"_a, "x"_a, "y"_a)
        .def("mix_streams", &add_mix_streams, "dim"_a, "streams"_a, "outputs"_a, "size"_a, "x"_a, "weights"_a,
             "y"_a)
        .def("sinkhorn", &add_sinkhorn, "dim"_a, "size"_a, "iterations"_a, "eps"_a, "x"_a, "y"_a)
        .def("rms", &add_rms, "dim"_a, "width"_a, "x"_a, "y"_a)
        .def("gaussian_top_k", &add_gaussian_top_k, "dim"_a, "width"_a, "multiplier"_a, "x"_a, "y"_a)
        .def("position_scale", &add_position_scale, "dim"_a, "positions"_a, "length"_a, "beta"_a, "offset"_a,
             "y"_a);
}

}  // namespace chaski
