// `routes` is [row][2][count], `groups` [row][count] of Group.
#include "../../steps/moe.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>

#include "../expert_stack.h"
#include "steps.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

void add_router(PlanBuilder& plan, int dim, std::int64_t experts, std::int64_t count, int gating,
                bool normalized, float scale, std::int64_t groups, std::int64_t used_groups,
                std::int64_t best_of_group, std::vector<std::int32_t> table, const Weights* weights,
                Optional bias, Optional tokens, std::size_t x, std::size_t y) {
    require(0 < count && count <= experts && 0 <= gating && gating <= 4, "router: bad count or gating");
    require(tokens.has_value() != table.empty() && static_cast<std::int64_t>(table.size()) % count == 0 &&
                std::all_of(table.begin(), table.end(),
                            [=](std::int32_t expert) { return 0 <= expert && expert < experts; }),
            "router: a table lists experts of tokens");
    require(groups == 1 || (0 < groups && experts % groups == 0 && 0 < best_of_group &&
                            best_of_group <= experts / groups && 0 < used_groups && used_groups <= groups &&
                            count <= used_groups * (experts / groups)),
            "router: bad groups");
    RouterConfig router{experts,
                        count,
                        static_cast<Gating>(gating),
                        normalized,
                        scale,
                        plan.optional_vector(weights, bias, experts),
                        groups,
                        used_groups,
                        best_of_group,
                        tokens ? plan.indices(*tokens, dim) : nullptr,
                        std::move(table)};
    plan.add(std::make_unique<RouterStep>(plan.ops(), dim, std::move(router), plan.floats(x, dim, experts),
                                          plan.floats(y, dim, 2 * count)));
}

void add_scale_experts(PlanBuilder& plan, int dim, std::int64_t experts, std::int64_t count,
                       const Weights* weights, std::int64_t scales, std::size_t x, std::size_t y) {
    require(0 < count && count <= experts, "scale_experts: bad count");
    plan.add(std::make_unique<ScaleExpertsStep>(dim, experts, count, plan.vector(weights, scales, experts),
                                                plan.floats(x, dim, 2 * count),
                                                plan.floats(y, dim, 2 * count)));
}

void add_scale_by_expert(PlanBuilder& plan, int dim, std::int64_t experts, std::int64_t count,
                         std::int64_t width, const Weights* weights, std::int64_t scales, std::size_t x,
                         std::size_t groups, std::size_t y) {
    require(experts > 0 && count > 0, "scale_by_expert: no experts");
    plan.add(scale_by_expert(plan.ops(), dim, count, width, plan.vector(weights, scales, experts),
                             plan.floats(x, dim, count * width), plan.rows<Group>(groups, dim, count),
                             plan.floats(y, dim, count * width)));
}

// The dimension `of_places` has a row for each expert.
void add_group_by_expert(PlanBuilder& plan, int dim, std::int64_t experts, std::int64_t count,
                         std::int64_t matrices, Optional places, int of_places, std::size_t routes,
                         std::size_t y) {
    require(experts > 0 && count > 0 && matrices > 0, "group_by_expert: no experts");
    require(places ? plan.maximum(of_places) == experts : matrices == experts,
            "group_by_expert: every expert has one place");
    plan.add(std::make_unique<GroupByExpertStep>(
        dim, experts, count, matrices, places ? plan.indices(*places, of_places) : nullptr,
        plan.floats(routes, dim, 2 * count), plan.rows<Group>(y, dim, count)));
}

void add_join_experts(PlanBuilder& plan, int dim, std::int64_t count, std::int64_t width, std::size_t x,
                      std::size_t groups, std::size_t other, std::size_t other_groups, std::size_t y) {
    plan.add(std::make_unique<JoinExpertsStep>(
        dim, count, width, plan.floats(x, dim, count * width), plan.rows<Group>(groups, dim, count),
        plan.floats(other, dim, count * width), plan.rows<Group>(other_groups, dim, count),
        plan.floats(y, dim, count * width)));
}

void add_dispatch(PlanBuilder& plan, int dim, std::int64_t count, std::int64_t width, std::size_t x,
                  Optional routes, std::size_t groups, std::size_t y) {
    plan.add(dispatch(plan.ops(), dim, count, width, plan.floats(x, dim, width),
                      plan.optional_floats(routes, dim, 2 * count), plan.rows<Group>(groups, dim, count),
                      plan.floats(y, dim, count * width)));
}

void add_dispatch_quantized(PlanBuilder& plan, int dim, std::int64_t count, std::int64_t width, std::size_t x,
                            std::size_t groups, std::size_t y) {
    plan.add(dispatch_quantized(dim, count, width, plan.quantized(x, dim, width, width),
                                plan.rows<Group>(groups, dim, count),
                                plan.quantized(y, dim, count * width, width)));
}

// Experts in a store, or all of them.
using Experts = std::variant<ExpertStack, std::vector<OwnedMatrix>>;

ExpertMatrices matrices_of(const Experts& experts) {
    if (const auto* stack = std::get_if<ExpertStack>(&experts)) {
        const ExpertStore::Stack& s = stack->stack();
        return {std::ssize(s.offsets), s.rows, s.k, {}, stack->store, stack->number};
    }
    const auto& all = std::get<std::vector<OwnedMatrix>>(experts);
    require(!all.empty(), "expert_matmul: no experts");
    const Matrix& m = all[0].matrix;
    for (const OwnedMatrix& expert : all) {
        const Matrix& other = expert.matrix;
        require(other.type == m.type && other.rows == m.rows && other.k == m.k &&
                    expert.origin->stride == all[0].origin->stride,
                "expert_matmul: experts of different shapes, types or strides");
    }
    return {std::ssize(all), m.rows, m.k, all, nullptr, 0};
}

void add_expert_matmul(PlanBuilder& plan, int dim, std::int64_t count, const Experts& experts,
                       const Weights* weights, Optional bias, Optional x, Optional quantized,
                       std::size_t groups, std::size_t y) {
    require(count > 0, "expert_matmul: no experts");
    ExpertMatrices matrices = matrices_of(experts);
    const auto [size, rows, k] = std::tuple(matrices.count, matrices.rows, matrices.k);
    const Matrix m = matrices.store ? Matrix{matrices.store->stack(matrices.number).type, rows, k, nullptr}
                                    : matrices.all[0].matrix;
    plan.add(std::make_unique<ExpertMatmulStep>(
        plan.multiplier(m), dim, plan.maximum(dim), count, std::move(matrices),
        plan.optional_vector(weights, bias, size * rows), plan.activations(m, x, quantized, dim, count * k),
        plan.rows<Group>(groups, dim, count), plan.floats(y, dim, count * rows)));
}

void add_request_experts(PlanBuilder& plan, int dim, std::int64_t count,
                         const std::vector<ExpertStack>& stacks, std::size_t groups) {
    require(!stacks.empty() && count > 0, "request_experts: no experts");
    std::vector<int> numbers;
    for (const ExpertStack& stack : stacks) {
        require(stack.store == stacks[0].store &&
                    stack.stack().offsets.size() == stacks[0].stack().offsets.size(),
                "request_experts: stacks of different stores or sizes");
        numbers.push_back(stack.number);
    }
    plan.add(std::make_unique<RequestExpertsStep>(dim, count, stacks[0].store, std::move(numbers),
                                                  plan.rows<Group>(groups, dim, count)));
}

void add_combine(PlanBuilder& plan, int dim, std::int64_t count, std::int64_t width, std::size_t x,
                 Optional routes, std::size_t groups, std::size_t y) {
    plan.add(combine(plan.ops(), dim, count, width, plan.floats(x, dim, count * width),
                     plan.optional_floats(routes, dim, 2 * count), plan.rows<Group>(groups, dim, count),
                     plan.floats(y, dim, width)));
}

}  // namespace

void bind_moe(nb::class_<PlanBuilder>& plan) {
    plan.def("router", &add_router, "dim"_a, "experts"_a, "count"_a, "gating"_a, "normalized"_a, "scale"_a,
             "groups"_a, "used_groups"_a, "best_of_group"_a, "table"_a, "weights"_a.none(), "bias"_a,
             "tokens"_a, "x"_a, "y"_a)
        .def("scale_experts", &add_scale_experts, "dim"_a, "experts"_a, "count"_a, "weights"_a.none(),
             "scales"_a, "x"_a, "y"_a)
        .def("scale_by_expert", &add_scale_by_expert, "dim"_a, "experts"_a, "count"_a, "width"_a,
             "weights"_a.none(), "scales"_a, "x"_a, "groups"_a, "y"_a)
        .def("group_by_expert", &add_group_by_expert, "dim"_a, "experts"_a, "count"_a, "matrices"_a,
             "places"_a, "of_places"_a, "routes"_a, "y"_a)
        .def("join_experts", &add_join_experts, "dim"_a, "count"_a, "width"_a, "x"_a, "groups"_a, "other"_a,
             "other_groups"_a, "y"_a)
        .def("dispatch", &add_dispatch, "dim"_a, "count"_a, "width"_a, "x"_a, "routes"_a, "groups"_a, "y"_a)
        .def("dispatch_quantized", &add_dispatch_quantized, "dim"_a, "count"_a, "width"_a, "x"_a, "groups"_a,
             "y"_a)
        .def("request_experts", &add_request_experts, "dim"_a, "count"_a, "stacks"_a, "groups"_a)
        .def("expert_matmul", &add_expert_matmul, "dim"_a, "count"_a, "experts"_a, "weights"_a.none(),
             "bias"_a, "x"_a, "quantized"_a, "groups"_a, "y"_a)
        .def("combine", &add_combine, "dim"_a, "count"_a, "width"_a, "x"_a, "routes"_a, "groups"_a, "y"_a);
}

}  // namespace chaski
