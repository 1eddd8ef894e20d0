#include "../../steps/elements.h"

#include "steps.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

template <class F>
void add_norm(PlanBuilder& plan, int dim, std::int64_t heads, std::int64_t size, std::size_t x, std::size_t y,
              std::int64_t quantized, F normalize) {
    require(heads > 0, "norm: no heads");
    std::int64_t width = heads * size;
    plan.add(norm(dim, heads, size, plan.floats(x, dim, width), plan.floats(y, dim, width),
                  plan.quantizer(quantized, dim, width), normalize));
}

// `weight` is -1 for 1.
void add_rms_norm(PlanBuilder& plan, int dim, const Weights* weights, std::int64_t weight, std::int64_t heads,
                  std::int64_t size, float eps, std::size_t x, std::size_t y, std::int64_t quantized) {
    const float* w = plan.optional_vector(weights, weight, size);
    add_norm(plan, dim, heads, size, x, y, quantized,
             [&ops = plan.ops(), w, eps, size](const float* row, float* result) {
                 ops.rms_norm(row, w, eps, size, result);
             });
}

void add_layer_norm(PlanBuilder& plan, int dim, const Weights* weights, std::int64_t weight,
                    std::int64_t bias, std::int64_t heads, std::int64_t size, float eps, std::size_t x,
                    std::size_t y, std::int64_t quantized) {
    const float* w = plan.vector(weights, weight, size);
    const float* b = plan.vector(weights, bias, size);
    add_norm(plan, dim, heads, size, x, y, quantized,
             [&ops = plan.ops(), w, b, eps, size](const float* row, float* result) {
                 ops.layer_norm(row, w, b, eps, size, result);
             });
}

template <class F>
void add_map(PlanBuilder& plan, int dim, std::int64_t width, std::size_t x, std::size_t y,
             std::int64_t quantized, F f) {
    plan.add(map(dim, width, plan.floats(x, dim, width), plan.floats(y, dim, width),
                 plan.quantizer(quantized, dim, width), f));
}
template <class F>
void add_map(PlanBuilder& plan, int dim, std::int64_t width, std::size_t a, std::size_t b, std::size_t y,
             std::int64_t quantized, F f) {
    plan.add(map(dim, width, plan.floats(a, dim, width), plan.floats(b, dim, width),
                 plan.floats(y, dim, width), plan.quantizer(quantized, dim, width), f));
}

void add_swiglu(PlanBuilder& plan, int dim, std::int64_t width, std::size_t gate, std::size_t up,
                std::size_t y, std::int64_t quantized) {
    add_map(plan, dim, width, gate, up, y, quantized, plan.ops().swiglu);
}

void add_geglu(PlanBuilder& plan, int dim, std::int64_t width, std::size_t gate, std::size_t up,
               std::size_t y, std::int64_t quantized) {
    add_map(plan, dim, width, gate, up, y, quantized, plan.ops().geglu);
}

void add_clamped_swiglu(PlanBuilder& plan, int dim, std::int64_t width, float alpha, float limit,
                        std::size_t gate, std::size_t up, std::size_t y, std::int64_t quantized) {
    add_map(
        plan, dim, width, gate, up, y, quantized,
        [&ops = plan.ops(), alpha, limit](const float* g, const float* u, std::int64_t count, float* result) {
            ops.clamped_swiglu(g, u, alpha, limit, count, result);
        });
}

void add_sum(PlanBuilder& plan, int dim, std::int64_t width, std::size_t a, std::size_t b, std::size_t y) {
    add_map(plan, dim, width, a, b, y, -1, plan.ops().add);
}

void add_multiply(PlanBuilder& plan, int dim, std::int64_t width, std::size_t a, std::size_t b, std::size_t y,
                  std::int64_t quantized) {
    add_map(plan, dim, width, a, b, y, quantized, plan.ops().multiply);
}

// Adds a vector of the weights to every row.
void add_vector(PlanBuilder& plan, int dim, std::int64_t width, const Weights* weights, std::int64_t vector,
                std::size_t x, std::size_t y) {
    const float* v = plan.vector(weights, vector, width);
    add_norm(plan, dim, 1, width, x, y, -1, [&ops = plan.ops(), v, width](const float* row, float* result) {
        ops.add(row, v, width, result);
    });
}

void add_gelu(PlanBuilder& plan, int dim, std::int64_t width, std::size_t x, std::size_t y,
              std::int64_t quantized) {
    add_map(plan, dim, width, x, y, quantized, plan.ops().gelu);
}

void add_gelu_tanh(PlanBuilder& plan, int dim, std::int64_t width, std::size_t x, std::size_t y,
                   std::int64_t quantized) {
    add_map(plan, dim, width, x, y, quantized, plan.ops().gelu_tanh);
}

void add_softcap(PlanBuilder& plan, int dim, std::int64_t width, float cap, std::size_t x, std::size_t y) {
    add_map(plan, dim, width, x, y, -1,
            [&ops = plan.ops(), cap](const float* from, std::int64_t count, float* result) {
                ops.softcap(from, cap, count, result);
            });
}

void add_scale(PlanBuilder& plan, int dim, std::int64_t width, float factor, std::size_t x, std::size_t y) {
    add_map(plan, dim, width, x, y, -1,
            [&ops = plan.ops(), factor](const float* from, std::int64_t count, float* result) {
                ops.scale(from, factor, count, result);
            });
}

void add_scale_rows(PlanBuilder& plan, int dim, std::int64_t width, std::size_t x, std::size_t factors,
                    std::size_t y) {
    plan.add(scale_rows(plan.ops(), dim, width, plan.floats(x, dim, width), plan.floats(factors, dim, 1),
                        plan.floats(y, dim, width)));
}

void add_position_scale(PlanBuilder& plan, int dim, std::size_t positions, std::int64_t length, double beta,
                        std::int64_t offset, std::size_t y) {
    require(length > 0 && offset >= 0, "position_scale: bad length or offset");
    plan.add(position_scale(dim, plan.indices(positions, dim), length, beta, offset, plan.floats(y, dim, 1)));
}

}  // namespace

void bind_elements(nb::class_<PlanBuilder>& plan) {
    plan.def("rms_norm", &add_rms_norm, "dim"_a, "weights"_a.none(), "weight"_a, "heads"_a, "size"_a, "eps"_a,
             "x"_a, "y"_a, "quantized"_a)
        .def("layer_norm", &add_layer_norm, "dim"_a, "weights"_a.none(), "weight"_a, "bias"_a, "heads"_a,
             "size"_a, "eps"_a, "x"_a, "y"_a, "quantized"_a)
        .def("swiglu", &add_swiglu, "dim"_a, "width"_a, "gate"_a, "up"_a, "y"_a, "quantized"_a)
        .def("geglu", &add_geglu, "dim"_a, "width"_a, "gate"_a, "up"_a, "y"_a, "quantized"_a)
        .def("clamped_swiglu", &add_clamped_swiglu, "dim"_a, "width"_a, "alpha"_a, "limit"_a, "gate"_a,
             "up"_a, "y"_a, "quantized"_a)
        .def("add", &add_sum, "dim"_a, "width"_a, "a"_a, "b"_a, "y"_a)
        .def("multiply", &add_multiply, "dim"_a, "width"_a, "a"_a, "b"_a, "y"_a, "quantized"_a)
        .def("add_vector", &add_vector, "dim"_a, "width"_a, "weights"_a.none(), "vector"_a, "x"_a, "y"_a)
        .def("gelu", &add_gelu, "dim"_a, "width"_a, "x"_a, "y"_a, "quantized"_a)
        .def("gelu_tanh", &add_gelu_tanh, "dim"_a, "width"_a, "x"_a, "y"_a, "quantized"_a)
        .def("softcap", &add_softcap, "dim"_a, "width"_a, "cap"_a, "x"_a, "y"_a)
        .def("scale", &add_scale, "dim"_a, "width"_a, "factor"_a, "x"_a, "y"_a)
        .def("scale_rows", &add_scale_rows, "dim"_a, "width"_a, "x"_a, "factors"_a, "y"_a)
        .def("position_scale", &add_position_scale, "dim"_a, "positions"_a, "length"_a, "beta"_a, "offset"_a,
             "y"_a);
}

}  // namespace chaski
