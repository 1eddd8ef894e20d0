#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "../../steps/chunked_conv.h"
#include "../../steps/delta_rule.h"
#include "../../steps/pooling.h"
#include "../../steps/scans.h"
#include "../../steps/short_conv.h"
#include "steps.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

const KVStorage& float_rows(PlanBuilder& plan, const OwnedStorage& owned, const char* step) {
    const KVStorage& s = plan.held(owned);
    require(s.type == DType::F32 && !s.in_panels, std::string(step) + ": states are float32 rows");
    return s;
}

// `filter` is [tap][channel], and `states` has a head for each tap except the last.
void add_short_conv(PlanBuilder& plan, int dim, int segments_dim, std::size_t x, std::vector<float> filter,
                    std::size_t segments, const OwnedStorage& states, std::size_t y) {
    const KVStorage& s = float_rows(plan, states, "short_conv");
    require(static_cast<std::int64_t>(filter.size()) == (s.heads + 1) * s.size,
            "short_conv: the filter does not fit the states");
    plan.add(std::make_unique<ShortConvStep>(dim, segments_dim, plan.floats(x, dim, s.size),
                                             std::move(filter), plan.rows<Segment>(segments, segments_dim, 1),
                                             s, plan.floats(y, dim, s.size)));
}

void add_chunked_conv(PlanBuilder& plan, int dim, int segments_dim, std::size_t x, std::vector<float> filter,
                      std::size_t segments, const OwnedStorage& states, const OwnedStorage& rows,
                      std::size_t y) {
    const KVStorage& s = float_rows(plan, states, "chunked_conv");
    const KVStorage& r = float_rows(plan, rows, "chunked_conv");
    require(static_cast<std::int64_t>(filter.size()) == (s.heads + 1) * s.size && s.heads < kDeltaChunk &&
                r.heads == kDeltaRing && r.size == s.size,
            "chunked_conv: filter, states and rows do not fit each other");
    plan.add(std::make_unique<ChunkedConvStep>(
        dim, segments_dim, plan.floats(x, dim, s.size), std::move(filter),
        plan.rows<ChunkSegment>(segments, segments_dim, 1), s, r, plan.floats(y, dim, s.size)));
}

// Storage of keys and decays, and the rows to write.
GatedDelta delta_rows(PlanBuilder& plan, int dim, std::size_t k, std::size_t log_decay,
                      const OwnedStorage& keys, const OwnedStorage& log_decays, bool is_tiled) {
    GatedDelta job{};
    job.keys = float_rows(plan, keys, "gated_delta");
    job.log_decays = float_rows(plan, log_decays, "gated_delta");
    job.is_tiled = is_tiled;
    require(job.keys.size % kDeltaRing == 0 && job.log_decays.size == kDeltaRing &&
                job.keys.cells == job.log_decays.cells && job.heads() % job.key_heads() == 0,
            "gated_delta: rows do not fit each other");
    job.k = plan.floats(k, dim, job.key_heads() * job.key_size());
    job.log_decay = plan.floats(log_decay, dim, job.heads());
    return job;
}

void add_delta_rows(PlanBuilder& plan, int dim, int segments_dim, std::size_t k, std::size_t log_decay,
                    std::size_t segments, const OwnedStorage& keys, const OwnedStorage& log_decays,
                    bool is_tiled, bool is_before) {
    plan.add(std::make_unique<DeltaRowsStep>(segments_dim,
                                             delta_rows(plan, dim, k, log_decay, keys, log_decays, is_tiled),
                                             plan.rows<ChunkSegment>(segments, segments_dim, 1), is_before));
}

void add_gated_delta(PlanBuilder& plan, int dim, int segments_dim, std::size_t q, std::size_t k,
                     std::size_t v, std::size_t log_decay, std::size_t beta, std::size_t segments,
                     const OwnedStorage& states, const OwnedStorage& keys, const OwnedStorage& values,
                     const OwnedStorage& log_decays, std::int64_t value_size, bool is_tiled,
                     std::vector<float> skip, std::size_t y) {
    GatedDelta job = delta_rows(plan, dim, k, log_decay, keys, log_decays, is_tiled);
    require(skip.empty() || static_cast<std::int64_t>(skip.size()) == job.heads(),
            "gated_delta: skip does not fit the heads");
    job.states = float_rows(plan, states, "gated_delta");
    job.values = float_rows(plan, values, "gated_delta");
    job.value_size = value_size;
    require(job.states.heads == job.log_decays.heads && job.values.heads == job.states.heads &&
                job.values.size % (kDeltaRing * kLanes) == 0 && job.values.cells == job.keys.cells &&
                job.states.size == job.key_size() * job.columns() && value_size > 0 &&
                value_size <= job.columns() && value_size > job.columns() - kLanes,
            "gated_delta: states and rows do not fit each other");
    job.q = plan.floats(q, dim, job.key_heads() * job.key_size());
    job.v = plan.floats(v, dim, job.heads() * value_size);
    job.beta = plan.floats(beta, dim, job.heads());
    job.y = plan.floats(y, dim, job.heads() * value_size);
    plan.add(std::make_unique<GatedDeltaStep>(plan.ops(), dim, segments_dim, job, std::move(skip),
                                              plan.rows<ChunkSegment>(segments, segments_dim, 1),
                                              plan.plan().threads()));
}

// `a` is [state][channel], and `states` has a head for each number of a channel's state.
void add_selective_scan(PlanBuilder& plan, int dim, int segments_dim, std::size_t x, std::size_t dt,
                        std::size_t b, std::size_t c, std::vector<float> a, std::size_t segments,
                        const OwnedStorage& states, std::size_t y) {
    SelectiveScan job{};
    job.states = float_rows(plan, states, "selective_scan");
    require(static_cast<std::int64_t>(a.size()) == job.states.heads * job.states.size,
            "selective_scan: the decays do not fit the states");
    job.x = plan.floats(x, dim, job.channels());
    job.dt = plan.floats(dt, dim, job.channels());
    job.b = plan.floats(b, dim, job.state_size());
    job.c = plan.floats(c, dim, job.state_size());
    job.y = plan.floats(y, dim, job.channels());
    plan.add(std::make_unique<SelectiveScanStep>(plan.ops(), dim, segments_dim, job, std::move(a),
                                                 plan.rows<Segment>(segments, segments_dim, 1)));
}

// `bias` is [ratio][width of values].
void add_pooling(PlanBuilder& plan, int dim, int segments_dim, bool overlaps, std::size_t values,
                 std::size_t scores, std::vector<float> bias, std::size_t segments,
                 const OwnedStorage& states, const OwnedStorage& rows, std::size_t y) {
    Pooling job{};
    job.states = float_rows(plan, states, "pooling");
    job.rows = float_rows(plan, rows, "pooling");
    job.overlaps = overlaps;
    require(job.states.heads == 3 && job.rows.heads == kDeltaRing &&
                job.width() == job.channels() * (overlaps ? 2 : 1) && !bias.empty() &&
                static_cast<std::int64_t>(bias.size()) % job.width() == 0,
            "pooling: states, rows and bias do not fit each other");
    job.ratio = static_cast<std::int64_t>(bias.size()) / job.width();
    require(kDeltaChunk % job.ratio == 0 || (job.ratio % kDeltaChunk == 0 && !overlaps),
            "pooling: groups do not fit chunks");
    job.values = plan.floats(values, dim, job.width());
    job.scores = plan.floats(scores, dim, job.width());
    job.y = plan.floats(y, dim, job.channels());
    plan.add(std::make_unique<PoolingStep>(plan.ops(), dim, segments_dim, job, std::move(bias),
                                           plan.rows<ChunkSegment>(segments, segments_dim, 1)));
}

// `states` has a head for each of the rule, of key size x columns. `a` and `b` are both None or neither.
void add_generalized_delta(PlanBuilder& plan, int dim, int segments_dim, std::size_t r, std::size_t w,
                           std::size_t k, std::size_t v, std::optional<std::size_t> a,
                           std::optional<std::size_t> b, std::size_t segments, const OwnedStorage& states,
                           std::int64_t value_size, std::size_t y) {
    GeneralizedDelta job{};
    job.states = float_rows(plan, states, "generalized_delta");
    job.value_size = value_size;
    require(value_size > 0 && job.states.size % job.columns() == 0 && a.has_value() == b.has_value(),
            "generalized_delta: values do not fit the states");
    const std::int64_t keys = job.heads() * job.key_size();
    job.r = plan.floats(r, dim, keys);
    job.w = plan.floats(w, dim, keys);
    job.k = plan.floats(k, dim, keys);
    job.a = plan.optional_floats(a, dim, keys);
    job.b = plan.optional_floats(b, dim, keys);
    job.v = plan.floats(v, dim, job.heads() * value_size);
    job.y = plan.floats(y, dim, job.heads() * value_size);
    plan.add(std::make_unique<GeneralizedDeltaStep>(plan.ops(), dim, segments_dim, job,
                                                    plan.rows<Segment>(segments, segments_dim, 1)));
}

}  // namespace

void bind_recurrent(nb::class_<PlanBuilder>& plan) {
    plan.def("short_conv", &add_short_conv, "dim"_a, "segments_dim"_a, "x"_a, "filter"_a, "segments"_a,
             "states"_a, "y"_a)
        .def("chunked_conv", &add_chunked_conv, "dim"_a, "segments_dim"_a, "x"_a, "filter"_a, "segments"_a,
             "states"_a, "rows"_a, "y"_a)
        .def("delta_rows", &add_delta_rows, "dim"_a, "segments_dim"_a, "k"_a, "log_decay"_a, "segments"_a,
             "keys"_a, "log_decays"_a, "tiled"_a, "before"_a)
        .def("gated_delta", &add_gated_delta, "dim"_a, "segments_dim"_a, "q"_a, "k"_a, "v"_a, "log_decay"_a,
             "beta"_a, "segments"_a, "states"_a, "keys"_a, "values"_a, "log_decays"_a, "value_size"_a,
             "tiled"_a, "skip"_a, "y"_a)
        .def("selective_scan", &add_selective_scan, "dim"_a, "segments_dim"_a, "x"_a, "dt"_a, "b"_a, "c"_a,
             "a"_a, "segments"_a, "states"_a, "y"_a)
        .def("pooling", &add_pooling, "dim"_a, "segments_dim"_a, "overlaps"_a, "values"_a, "scores"_a,
             "bias"_a, "segments"_a, "states"_a, "rows"_a, "y"_a)
        .def("generalized_delta", &add_generalized_delta, "dim"_a, "segments_dim"_a, "r"_a, "w"_a, "k"_a,
             "v"_a, "a"_a.none(), "b"_a.none(), "segments"_a, "states"_a, "value_size"_a, "y"_a);
}

}  // namespace chaski
