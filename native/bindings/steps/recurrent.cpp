#include <nanobind/stl/vector.h>

#include "../../steps/short_conv.h"
#include "steps.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

// `filter` is [tap][channel], and `states` has a head for each tap but the last.
void add_short_conv(PlanBuilder& plan, int dim, int segments_dim, std::size_t x, std::vector<float> filter,
                    std::size_t segments, const OwnedStorage& states, std::size_t y) {
    const KVStorage& s = plan.held(states);
    require(s.type == DType::F32 && !s.in_panels, "short_conv: states are float32 rows");
    require(static_cast<std::int64_t>(filter.size()) == (s.heads + 1) * s.size,
            "short_conv: the filter does not fit the states");
    plan.add(std::make_unique<ShortConvStep>(dim, segments_dim, plan.floats(x, dim, s.size),
                                             std::move(filter), plan.rows<Segment>(segments, segments_dim, 1),
                                             s, plan.floats(y, dim, s.size)));
}

}  // namespace

void bind_recurrent(nb::class_<PlanBuilder>& plan) {
    plan.def("short_conv", &add_short_conv, "dim"_a, "segments_dim"_a, "x"_a, "filter"_a, "segments"_a,
             "states"_a, "y"_a);
}

}  // namespace chaski
