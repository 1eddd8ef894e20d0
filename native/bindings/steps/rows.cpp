#include "../../steps/rows.h"

#include <nanobind/stl/vector.h>

#include "../../steps/checks.h"
#include "../../steps/matmul.h"
#include "../../steps/ngrams.h"
#include "../../steps/relative_dots.h"
#include "../../steps/top_k.h"
#include "steps.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

void add_embedding(PlanBuilder& plan, int dim, const OwnedMatrix& table, std::size_t ids, std::size_t y) {
    plan.add(std::make_unique<EmbeddingStep>(plan.kernels(), dim, table, plan.indices(ids, dim),
                                             plan.floats(y, dim, table.matrix.k)));
}

void add_rows(PlanBuilder& plan, int dim, int source_dim, std::int64_t width, std::size_t x,
              std::size_t indices, std::size_t y) {
    plan.add(copy_rows(dim, width, plan.floats(x, source_dim, width), plan.indices(indices, dim),
                       plan.floats(y, dim, width)));
}

void add_scatter(PlanBuilder& plan, int dim, int target_dim, std::int64_t width, std::size_t x,
                 std::size_t places, std::size_t y) {
    plan.add(scatter(dim, width, plan.floats(x, dim, width), plan.indices(places, dim),
                     plan.floats(y, target_dim, width)));
}

void add_slice(PlanBuilder& plan, int dim, std::int64_t groups, std::int64_t source_width, std::int64_t first,
               std::int64_t width, std::size_t x, std::size_t y) {
    require(groups > 0 && first >= 0 && width >= 0 && first + width <= source_width, "slice: out of range");
    plan.add(slice(dim, groups, source_width, first, width, plan.floats(x, dim, groups * source_width),
                   plan.floats(y, dim, groups * width)));
}

void add_concat_columns(PlanBuilder& plan, int dim, std::int64_t groups, std::int64_t width,
                        std::int64_t target_width, std::int64_t first, std::int64_t stride, std::size_t x,
                        std::size_t y) {
    require(
        groups > 0 && width > 0 && first >= 0 && stride > 0 && first + (width - 1) * stride < target_width,
        "concat_columns: out of range");
    plan.add(concat_columns(dim, groups, width, target_width, first, stride,
                            plan.floats(x, dim, groups * width), plan.floats(y, dim, groups * target_width)));
}

// A batch must have `count` source rows for each row of the result.
void require_groups(PlanBuilder& plan, const char* step, int dim, int source_dim, std::int64_t count) {
    require(count > 0, std::string(step) + ": no rows to join");
    plan.require_dim(source_dim);
    plan.add(std::make_unique<GroupCheckStep>(step, dim, source_dim, count));
}

void add_space_to_depth(PlanBuilder& plan, int dim, int source_dim, std::int64_t width, std::int64_t count,
                        std::size_t x, std::size_t y) {
    require_groups(plan, "space_to_depth", dim, source_dim, count);
    plan.add(space_to_depth(dim, width, count, plan.floats(x, source_dim, width),
                            plan.floats(y, dim, width * count)));
}

void add_average_rows(PlanBuilder& plan, int dim, int source_dim, std::int64_t width, std::int64_t count,
                      std::size_t x, std::size_t y) {
    require_groups(plan, "average_rows", dim, source_dim, count);
    plan.add(average_rows(plan.ops(), dim, width, count, plan.floats(x, source_dim, width),
                          plan.floats(y, dim, width)));
}

// `maxima` has a float for every lane (see top_k.h), `y` is [row][2][max_k].
void add_lane_maxima(PlanBuilder& plan, int dim, std::int64_t width, std::size_t x, std::size_t counts,
                     std::size_t maxima) {
    plan.add(std::make_unique<MaximaStep>(plan.ops(), dim, width, plan.floats(x, dim, width),
                                          plan.indices(counts, dim),
                                          plan.floats(maxima, dim, Blocks(width).lanes())));
}

void add_top_k(PlanBuilder& plan, int dim, std::int64_t width, std::int64_t max_k, std::size_t x,
               std::size_t counts, std::size_t maxima, std::size_t y) {
    require(0 < max_k && width <= 1 << 24, "top_k: indices must be exact as float32");
    plan.add(std::make_unique<TopKStep>(
        dim, width, max_k, plan.floats(x, dim, width), plan.indices(counts, dim),
        plan.floats(maxima, dim, Blocks(width).lanes()), plan.floats(y, dim, 2 * max_k)));
}

void add_token_numbers(PlanBuilder& plan, int dim, std::size_t tokens, std::size_t y) {
    plan.add(token_numbers(dim, plan.indices(tokens, dim), plan.floats(y, dim, 1)));
}

void add_hash_ngrams(PlanBuilder& plan, int dim, std::vector<std::uint64_t> multipliers, std::uint64_t size,
                     std::uint64_t offset, std::int32_t separator, std::int64_t width, std::size_t tokens,
                     std::size_t before, std::size_t y) {
    const auto count = static_cast<std::int64_t>(multipliers.size());
    require(1 < count && count <= width + 1 && size > 0 && offset + size <= INT32_MAX,
            "hash_ngrams: no tokens before, or too many rows");
    NgramHash hash{std::move(multipliers), size, offset, separator};
    plan.add(hash_ngrams(dim, std::move(hash), width, plan.indices(tokens, dim),
                         plan.floats(before, dim, width), plan.rows<std::int32_t>(y, dim, 1)));
}

void add_rooted_dots(PlanBuilder& plan, int dim, std::int64_t heads, std::int64_t size, float factor,
                     float least, std::size_t a, std::size_t b, std::size_t y) {
    require(heads > 0 && size > 0, "rooted_dots: no elements");
    plan.add(rooted_dots(dim, heads, size, factor, least, plan.floats(a, dim, heads * size),
                         plan.floats(b, dim, heads * size), plan.floats(y, dim, heads)));
}

void add_relative_dots(PlanBuilder& plan, int dim, int table_dim, std::int64_t heads, std::int64_t size,
                       std::int64_t count, std::size_t x, std::size_t table, std::size_t first,
                       std::size_t y) {
    require(heads > 0 && size > 0 && count > 0, "relative_dots: no elements");
    plan.add(std::make_unique<RelativeDotsStep>(
        plan.ops(), dim, table_dim, RelativeDots{heads, size, count}, plan.floats(x, dim, heads * size),
        plan.floats(table, table_dim, size), plan.indices(first, dim), plan.floats(y, dim, heads * count)));
}

}  // namespace

void bind_rows(nb::module_& m, nb::class_<PlanBuilder>& plan) {
    m.def("num_lanes", [](std::int64_t width) { return Blocks(width).lanes(); }, "width"_a);
    plan.def("embedding", &add_embedding, "dim"_a, "table"_a, "ids"_a, "y"_a)
        .def("rows", &add_rows, "dim"_a, "source_dim"_a, "width"_a, "x"_a, "indices"_a, "y"_a)
        .def("scatter", &add_scatter, "dim"_a, "target_dim"_a, "width"_a, "x"_a, "places"_a, "y"_a)
        .def("slice", &add_slice, "dim"_a, "groups"_a, "source_width"_a, "first"_a, "width"_a, "x"_a, "y"_a)
        .def("concat_columns", &add_concat_columns, "dim"_a, "groups"_a, "width"_a, "target_width"_a,
             "first"_a, "stride"_a, "x"_a, "y"_a)
        .def("space_to_depth", &add_space_to_depth, "dim"_a, "source_dim"_a, "width"_a, "count"_a, "x"_a,
             "y"_a)
        .def("average_rows", &add_average_rows, "dim"_a, "source_dim"_a, "width"_a, "count"_a, "x"_a, "y"_a)
        .def("lane_maxima", &add_lane_maxima, "dim"_a, "width"_a, "x"_a, "counts"_a, "maxima"_a)
        .def("token_numbers", &add_token_numbers, "dim"_a, "tokens"_a, "y"_a)
        .def("hash_ngrams", &add_hash_ngrams, "dim"_a, "multipliers"_a, "size"_a, "offset"_a, "separator"_a,
             "width"_a, "tokens"_a, "before"_a, "y"_a)
        .def("rooted_dots", &add_rooted_dots, "dim"_a, "heads"_a, "size"_a, "factor"_a, "least"_a, "a"_a,
             "b"_a, "y"_a)
        .def("relative_dots", &add_relative_dots, "dim"_a, "table_dim"_a, "heads"_a, "size"_a, "count"_a,
             "x"_a, "table"_a, "first"_a, "y"_a)
        .def("top_k", &add_top_k, "dim"_a, "width"_a, "max_k"_a, "x"_a, "counts"_a, "maxima"_a, "y"_a);
}

}  // namespace chaski
