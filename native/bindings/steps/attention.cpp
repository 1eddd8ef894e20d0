#include "../../steps/attention.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "../../steps/cells.h"
#include "../../steps/choose.h"
#include "../../steps/entries.h"
#include "hadamard.h"
#include "steps.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace chaski {
namespace {

void add_rope_table(PlanBuilder& plan, int dim, std::size_t positions, std::int64_t width,
                    std::vector<float> frequencies, std::vector<std::int32_t> axes, float magnitude,
                    std::int32_t block, std::size_t table) {
    require(block > 0, "rope_table: no positions in a block");
    require(width > 0 && axes.size() == frequencies.size(), "rope_table: an axis for each pair is wanted");
    for (std::int32_t axis : axes)
        require(0 <= axis && axis < width, "rope_table: no such position in a row");
    auto columns = static_cast<std::int64_t>(2 * frequencies.size());
    RopeTurns turns{std::move(frequencies), std::move(axes), width, magnitude, block};
    plan.add(rope_table(dim, plan.rows<std::int32_t>(positions, dim, width), std::move(turns),
                        plan.floats(table, dim, columns)));
}

RopeRows rope_rows(PlanBuilder& plan, int dim, std::int64_t pairs, bool neox, std::size_t table,
                   std::int64_t head_size) {
    require(pairs > 0 && 2 * pairs <= head_size, "rope: no pairs, or more than the head has");
    return {pairs, neox, plan.floats(table, dim, 2 * pairs)};
}

void add_rope(PlanBuilder& plan, int dim, std::int64_t heads, std::int64_t size, std::int64_t pairs,
              bool neox, std::size_t x, std::size_t table, std::size_t y) {
    require(heads > 0, "rope: no heads");
    plan.add(rotate_rows(plan.ops(), dim, rope_rows(plan, dim, pairs, neox, table, size), heads, size,
                         plan.floats(x, dim, heads * size), plan.floats(y, dim, heads * size)));
}

// Throws unless `block` is a power of two that divides heads of `size` elements.
void check_hadamard(std::int64_t size, std::int64_t block) {
    require(block >= kLeastHadamard && (block & (block - 1)) == 0 && size > 0 && size % block == 0,
            "hadamard: heads are not whole blocks of a power of two");
}

void add_hadamard(PlanBuilder& plan, int dim, std::int64_t width, std::int64_t block, std::size_t x,
                  std::size_t y) {
    check_hadamard(width, block);
    plan.add(
        hadamard_rows(plan.ops(), dim, width, block, plan.floats(x, dim, width), plan.floats(y, dim, width)));
}

void add_store(PlanBuilder& plan, int dim, std::size_t x, std::size_t cells, const OwnedStorage& target) {
    const KVStorage& storage = plan.held(target);
    plan.add(std::make_unique<StoreStep>(plan.ops(), dim, plan.floats(x, dim, storage.heads * storage.size),
                                         plan.indices(cells, dim), storage));
}

void add_rotate_cells(PlanBuilder& plan, int dim, std::size_t cells, std::int64_t pairs, bool neox,
                      std::int64_t block, std::size_t table, const OwnedStorage& target) {
    const KVStorage& storage = plan.held(target);
    if (block != 1) check_hadamard(storage.size, block);
    plan.add(std::make_unique<KeyShiftStep>(plan.ops(), dim, plan.indices(cells, dim),
                                            rope_rows(plan, dim, pairs, neox, table, storage.size), block,
                                            storage));
}

// Returns the number of the tiles, for `attention`.
int add_tiles(PlanBuilder& plan, int tokens, int history, std::size_t spans, std::int64_t group,
              bool is_plain) {
    require(group > 0, "tiles: no query heads");
    plan.require_dim(history);
    const Span* list = plan.rows<Span>(spans, tokens, 1);
    plan.add(std::make_unique<TileStep>(tokens, history, 1, list, plan.maximum(tokens),
                                        tokens_per_tile(group, is_plain), plan.new_tiles()));
    return plan.num_tiles() - 1;
}

KeyChoice choice_of(std::int64_t count, std::int64_t block, std::int64_t local) {
    require(count > 0 && block > 0, "choose_cells: no keys are to be chosen");
    require(0 <= local && local <= count, "choose_cells: more local blocks than are to be chosen");
    return {count, block, local};
}

// The same for the cells that an indexer chose, [token][width of the choice].
int add_chosen_tiles(PlanBuilder& plan, int tokens, std::size_t spans, std::int64_t count, std::int64_t block,
                     std::int64_t local, std::int64_t group, bool is_plain) {
    require(group > 0, "chosen_tiles: no query heads");
    const KeyChoice choice = choice_of(count, block, local);
    const std::int64_t most = plan.maximum(tokens);
    const std::shared_ptr<Tiles> tiles = plan.new_tiles();
    plan.add(
        std::make_unique<ChosenSpansStep>(tokens, plan.rows<Span>(spans, tokens, 1), choice, most, tiles));
    plan.add(std::make_unique<TileStep>(tokens, tokens, choice.width(), tiles->chosen.data(), most,
                                        tokens_per_tile(group, is_plain), tiles));
    return plan.num_tiles() - 1;
}

// `parts` has a float for each entry of the longest history; without them a batch is never split.
void add_choose_cells(PlanBuilder& plan, int dim, int history, std::int64_t heads, float scale,
                      std::int64_t count, std::int64_t block, std::int64_t local, std::size_t q,
                      Optional weights, const OwnedStorage& keys, std::size_t cells, std::size_t spans,
                      Optional parts, std::size_t y) {
    const KVStorage& k = plan.held(keys);
    require(heads > 0 && k.heads == 1 && k.in_panels,
            "choose_cells: an indexer has query heads and one key head, whose keys lie in panels");
    const KeyChoice choice = choice_of(count, block, local);
    const Indexer job{plan.floats(q, dim, heads * k.size),
                      plan.optional_floats(weights, dim, heads),
                      k,
                      plan.indices(cells, history),
                      plan.rows<Span>(spans, dim, 1),
                      heads,
                      scale};
    const std::int64_t longest = plan.maximum(history);
    float* space = parts ? plan.plan().buffer<float>(*parts, longest) : nullptr;
    plan.add(std::make_unique<ChooseStep>(plan.ops(), dim, history, job, choice, longest, space,
                                          plan.plan().threads(),
                                          plan.rows<std::int32_t>(y, dim, choice.width())));
}

// `history` is the length of the longest list of cells. `distances` is [head][2 · reach + 1], or empty; if it
// is not empty, `positions` are required.
void attend(PlanBuilder& plan, int dim, std::int64_t heads, std::int64_t value_size, float scale, float cap,
            bool is_plain, std::size_t q, const OwnedStorage& keys, const OwnedStorage& values,
            const std::int32_t* cells, const Span* spans, std::int64_t history, int tiles,
            const Weights* weights, Optional sinks, std::vector<float> distances, Optional positions,
            Optional parts, std::size_t y) {
    const KVStorage& k = plan.held(keys);
    const KVStorage& v = plan.held(values);
    require(heads > 0 && heads % k.heads == 0 && k.heads == v.heads && k.cells == v.cells,
            "attention: heads or cells of queries, keys and values do not fit");
    require(k.in_panels && (!v.in_panels || k.data == v.data),
            "attention: keys lie in panels, and values in rows or in the keys");
    require(0 < value_size && (v.in_panels ? value_size <= v.size : value_size == v.size),
            "attention: values have another size");
    require(!is_plain || !(is_quantized(k.type) || is_quantized(v.type)),
            "attention: the plain form reads plain numbers only");
    const auto width = static_cast<std::int64_t>(distances.size()) / heads;
    require(distances.empty() ||
                (positions && width % 2 == 1 && static_cast<std::int64_t>(distances.size()) == width * heads),
            "attention: a head needs as many distances before a position as after it");
    const Attention job{plan.floats(q, dim, heads * k.size),
                        plan.floats(y, dim, heads * value_size),
                        k,
                        v,
                        value_size,
                        cells,
                        spans,
                        plan.optional_vector(weights, sinks, heads),
                        heads,
                        scale,
                        cap,
                        is_plain,
                        is_plain ? plain_attention_length(history) : kAttentionChunk,
                        positions ? plan.indices(*positions, dim) : nullptr,
                        nullptr,
                        width / 2};
    const int threads = plan.plan().threads();
    std::int64_t size = parts ? attention_parts(heads, k.heads, value_size, history, threads) : 0;
    float* space = parts ? plan.plan().buffer<float>(*parts, size) : nullptr;
    plan.add(std::make_unique<AttentionStep>(plan.ops(), job, std::move(distances), plan.tiles(tiles),
                                             tokens_per_tile(job.group(), is_plain), space, size, threads));
}

// Without `parts` a batch is never split. `sinks` is the place of a vector of the weights.
void add_attention(PlanBuilder& plan, int dim, int history, std::int64_t heads, std::int64_t value_size,
                   float scale, float cap, bool is_plain, std::size_t q, const OwnedStorage& keys,
                   const OwnedStorage& values, std::size_t cells, std::size_t spans, int tiles,
                   const Weights* weights, Optional sinks, std::vector<float> distances, Optional positions,
                   Optional parts, std::size_t y) {
    const std::int32_t* list = plan.indices(cells, history);
    attend(plan, dim, heads, value_size, scale, cap, is_plain, q, keys, values, list,
           plan.rows<Span>(spans, dim, 1), plan.maximum(history), tiles, weights, sinks, std::move(distances),
           positions, parts, y);
}

// Without `parts` a batch is never split. With them, the cells of all tokens of a split batch are at most
// `longest`; otherwise it is `count`.
void add_chosen_attention(PlanBuilder& plan, int dim, std::int64_t longest, std::int64_t heads,
                          std::int64_t value_size, float scale, float cap, bool is_plain, std::size_t q,
                          const OwnedStorage& keys, const OwnedStorage& values, std::size_t chosen,
                          std::int64_t count, int tiles, const Weights* weights, Optional sinks,
                          Optional parts, std::size_t y) {
    const std::int32_t* list = plan.rows<std::int32_t>(chosen, dim, count);
    attend(plan, dim, heads, value_size, scale, cap, is_plain, q, keys, values, list,
           plan.tiles(tiles)->chosen.data(), longest, tiles, weights, sinks, {}, std::nullopt, parts, y);
}

// `count` 0: a token sees the entries of all groups of `block` positions in its span of `entry_cells`, a list
// with the dimension `entries`. Otherwise `entry_cells` are those that an indexer chose.
void add_entry_attention(PlanBuilder& plan, int dim, int history, int entries, std::int64_t heads,
                         float scale, std::int64_t window, std::int64_t count, std::int64_t block,
                         std::size_t q, const OwnedStorage& keys, std::size_t cells, std::size_t spans,
                         const OwnedStorage& entry_keys, std::size_t entry_cells, std::size_t entry_spans,
                         const Weights* weights, Optional sinks, std::size_t y) {
    const KVStorage& k = plan.held(keys);
    const KVStorage& more = plan.held(entry_keys);
    require(heads > 0 && k.heads == 1 && more.heads == 1 && k.size == more.size && k.type == more.type &&
                k.in_panels && more.in_panels,
            "entry_attention: tokens and entries have one key head of the same form");
    require(window > 0 && count >= 0 && block > 0, "entry_attention: no window or no groups");
    Attention job{};
    job.q = plan.floats(q, dim, heads * k.size);
    job.y = plan.floats(y, dim, heads * k.size);
    job.keys = job.values = k;
    job.value_size = k.size;
    job.cells = plan.indices(cells, history);
    job.spans = plan.rows<Span>(spans, dim, 1);
    job.sinks = plan.optional_vector(weights, sinks, heads);
    job.heads = heads;
    job.scale = scale;
    job.length = kAttentionChunk;
    const std::int64_t longest = count > 0 ? count : plan.maximum(entries) / block;
    const std::int32_t* list =
        count > 0 ? plan.rows<std::int32_t>(entry_cells, dim, choice_of(count, block, 0).width())
                  : plan.indices(entry_cells, entries);
    const GroupEntries seen{more, list, plan.rows<Span>(entry_spans, dim, 1), block, count};
    plan.add(std::make_unique<EntryAttentionStep>(plan.ops(), dim, history, entries, job, seen, window,
                                                  longest, plan.plan().threads()));
}

std::size_t attention_parts_bytes(std::int64_t heads, std::int64_t kv_heads, std::int64_t value_size,
                                  std::int64_t history, int threads) {
    return attention_parts(heads, kv_heads, value_size, history, threads) * sizeof(float);
}

}  // namespace

void bind_attention(nb::module_& m, nb::class_<PlanBuilder>& plan) {
    m.def("attention_parts_bytes", &attention_parts_bytes, "heads"_a, "kv_heads"_a, "value_size"_a,
          "history"_a, "threads"_a);
    plan.def("rope_table", &add_rope_table, "dim"_a, "positions"_a, "width"_a, "frequencies"_a, "axes"_a,
             "magnitude"_a, "block"_a, "table"_a)
        .def("rope", &add_rope, "dim"_a, "heads"_a, "size"_a, "pairs"_a, "neox"_a, "x"_a, "table"_a, "y"_a)
        .def("hadamard", &add_hadamard, "dim"_a, "width"_a, "block"_a, "x"_a, "y"_a)
        .def("store", &add_store, "dim"_a, "x"_a, "cells"_a, "target"_a)
        .def("rotate_cells", &add_rotate_cells, "dim"_a, "cells"_a, "pairs"_a, "neox"_a, "block"_a, "table"_a,
             "target"_a)
        .def("tiles", &add_tiles, "tokens"_a, "history"_a, "spans"_a, "group"_a, "is_plain"_a)
        .def("attention", &add_attention, "dim"_a, "history"_a, "heads"_a, "value_size"_a, "scale"_a, "cap"_a,
             "is_plain"_a, "q"_a, "keys"_a, "values"_a, "cells"_a, "spans"_a, "tiles"_a, "weights"_a.none(),
             "sinks"_a, "distances"_a, "positions"_a, "parts"_a, "y"_a)
        .def("chosen_tiles", &add_chosen_tiles, "tokens"_a, "spans"_a, "count"_a, "block"_a, "local"_a,
             "group"_a, "is_plain"_a)
        .def("choose_cells", &add_choose_cells, "dim"_a, "history"_a, "heads"_a, "scale"_a, "count"_a,
             "block"_a, "local"_a, "q"_a, "weights"_a, "keys"_a, "cells"_a, "spans"_a, "parts"_a, "y"_a)
        .def("entry_attention", &add_entry_attention, "dim"_a, "history"_a, "entries"_a, "heads"_a, "scale"_a,
             "window"_a, "count"_a, "block"_a, "q"_a, "keys"_a, "cells"_a, "spans"_a, "entry_keys"_a,
             "entry_cells"_a, "entry_spans"_a, "weights"_a.none(), "sinks"_a, "y"_a)
        .def("chosen_attention", &add_chosen_attention, "dim"_a, "longest"_a, "heads"_a, "value_size"_a,
             "scale"_a, "cap"_a, "is_plain"_a, "q"_a, "keys"_a, "values"_a, "chosen"_a, "count"_a, "tiles"_a,
             "weights"_a.none(), "sinks"_a, "parts"_a, "y"_a);
}

}  // namespace chaski
