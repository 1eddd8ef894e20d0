#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "../../steps/matmul.h"
#include "steps.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

void add_matmul(PlanBuilder& plan, int dim, const OwnedMatrix& weight, Optional x, Optional quantized,
                const Weights* weights, Optional bias, Optional residual, std::size_t y) {
    const Matrix& m = weight.matrix;
    const Output out{plan.floats(y, dim, m.rows), m.rows, plan.optional_vector(weights, bias, m.rows),
                     plan.optional_floats(residual, dim, m.rows)};
    plan.add(std::make_unique<MatmulStep>(plan.multiplier(m), dim, plan.maximum(dim), weight,
                                          plan.activations(m, x, quantized, dim, m.k), out));
}

void add_head_matmul(PlanBuilder& plan, int dim, const std::vector<OwnedMatrix>& heads, Optional x,
                     Optional quantized, std::size_t y) {
    require(!heads.empty(), "head_matmul: no heads");
    const Matrix& m = heads[0].matrix;
    for (const OwnedMatrix& head : heads) {
        const Matrix& other = head.matrix;
        require(other.type == m.type && other.rows == m.rows && other.k == m.k,
                "head_matmul: heads of different shapes or types");
    }
    const auto count = static_cast<std::int64_t>(heads.size());
    plan.add(std::make_unique<HeadMatmulStep>(plan.multiplier(m), dim, plan.maximum(dim), heads,
                                              plan.activations(m, x, quantized, dim, count * m.k),
                                              plan.floats(y, dim, count * m.rows)));
}

// The matrix is a vector of the weights: [depth][width] as float32.
void add_product(PlanBuilder& plan, int dim, std::int64_t depth, std::int64_t width, const Weights* weights,
                 std::size_t matrix, std::size_t x, std::size_t y) {
    require(depth > 0 && width > 0, "product: no elements");
    plan.add(std::make_unique<ProductStep>(plan.ops(), dim, depth, width,
                                           plan.vector(weights, matrix, depth * width),
                                           plan.floats(x, dim, depth), plan.floats(y, dim, width)));
}

void add_quantize(PlanBuilder& plan, int dim, std::int64_t width, std::int64_t k, std::size_t x,
                  std::size_t quantized) {
    const Quantizer quantize{plan.kernels(), plan.quantized(quantized, dim, width, k)};
    const float* from = plan.floats(x, dim, width);
    plan.add(
        each_stretch(dim, width, [=](std::int64_t at, std::int64_t count) { quantize(from, at, count); }));
}

}  // namespace

void bind_products(nb::class_<PlanBuilder>& plan) {
    plan.def("matmul", &add_matmul, "dim"_a, "weight"_a, "x"_a, "quantized"_a, "weights"_a.none(), "bias"_a,
             "residual"_a, "y"_a)
        .def("head_matmul", &add_head_matmul, "dim"_a, "heads"_a, "x"_a, "quantized"_a, "y"_a)
        .def("product", &add_product, "dim"_a, "depth"_a, "width"_a, "weights"_a.none(), "matrix"_a, "x"_a,
             "y"_a)
        .def("quantize", &add_quantize, "dim"_a, "width"_a, "k"_a, "x"_a, "quantized"_a);
}

}  // namespace chaski
