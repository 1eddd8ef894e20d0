// Attention over scattered cells; ops.h defines its result. Compiled once per instruction set.
//
// A tile is up to 128 query rows (tokens × the heads of a group) of one sequence. A chunk of its history
// gives scores, weights and weighted values, and chunks are joined in order; the plain form has one chunk.

#include <cmath>

#include "attention_integers.h"
#include "attention_kernel.h"
#include "attention_latents.h"
#include "attention_products.h"
#include "attention_workspace.h"
#include "entry_points.h"

namespace chaski::CHASKI_ISA {
namespace {

void load_queries(const View& view, const Workspace& w) {
    const Attention& job = view.job;
    const std::int64_t size = job.keys.size;
    auto* to = const_cast<float*>(w.queries.floats);
    for (std::int64_t r = 0; r < view.rows; ++r, to += size) {
        const std::int64_t token = view.token(r);
        const float* q = job.q + (token * job.heads + view.head(r)) * size;
        for (std::int64_t d = 0; d < size; ++d) to[d] = q[d] * job.scale;
    }
    if (is_quantized(job.keys.type)) quantize_rows(w.queries.floats, view.rows, size, w.queries);
    if (job.keys.type == DType::I16) {
        const QuantizedRows& quantized = w.quantized_queries;
        for (std::int64_t r = 0; r < view.rows; ++r) {
            quantized.scales[r] = quantize_row(w.queries.floats + r * size, size, false,
                                               quantized.values + r * quantized.stride);
        }
    }
}

// Adds the terms for distances to the scores[from, to) of row r; score 0 is that of entry `start`.
void add_distances(const View& view, std::int64_t r, std::int64_t start, std::int64_t from, std::int64_t to,
                   float* scores) {
    const Attention& job = view.job;
    const float* table = job.distances + view.head(r) * (2 * job.reach + 1) + job.reach;
    const std::int64_t first = start - view.origin - job.positions[view.token(r)];
    std::int64_t i = from;
    for (; i < to && first + i < -job.reach; ++i) scores[i] += table[-job.reach];
    for (; i < to && first + i <= job.reach; ++i) scores[i] += table[first + i];
    for (; i < to; ++i) scores[i] += table[job.reach];
}

// Bounds scores[from, to) and returns the highest; the other lanes of their vectors count as hidden.
float highest_score(float* scores, std::int64_t from, std::int64_t to, float cap) {
    const std::int64_t first = from / kLanes * kLanes;
    const std::int64_t last = padded(to);
    if (cap > 0.0f) {
        for (std::int64_t i = first; i < last; i += kLanes) {
            store_f32(scores + i, bounded(load_f32(scores + i), cap));
        }
    }
    for (std::int64_t i = first; i < from; ++i) scores[i] = kHidden;
    for (std::int64_t i = to; i < last; ++i) scores[i] = kHidden;
    F32x16 highest = splat(kHidden);
    for (std::int64_t i = first; i < last; i += kLanes) highest = max(highest, load_f32(scores + i));
    return max_lanes(highest);
}

// Number of rows whose softmax is computed together, and number of vectors of their exponentials.
constexpr int kSoftmaxRows = 8;
constexpr int kExpVectors = kRegisters >= 32 ? 4 : 1;

// Turns scores[from, to) into weights relative to their maximum, and the other scores up to `length` into
// zeros. Returns the sum of the weights.
float softmax_weights(float* scores, std::int64_t from, std::int64_t to, std::int64_t length, float maximum) {
    const std::int64_t first = from / kLanes * kLanes;
    const std::int64_t last = padded(to);
    const F32x16 level = splat(maximum);
    F32x16 sum = splat(0.0f);
    std::int64_t i = first;
    const auto take = [&](auto vectors) __attribute__((always_inline)) {
        F32x16 weights[vectors.value];
        for (int v = 0; v < vectors; ++v) weights[v] = load_f32(scores + i + v * kLanes) - level;
        exp_each(weights);
        for (int v = 0; v < vectors; ++v, i += kLanes) {
            store_f32(scores + i, weights[v]);
            sum = sum + weights[v];
        }
    };
    while (i + kExpVectors * kLanes <= last) take(Index<kExpVectors>{});
    while (i < last) take(Index<1>{});
    if (first > 0) std::memset(scores, 0, first * sizeof(float));
    if (last < length) std::memset(scores + last, 0, (length - last) * sizeof(float));
    return sum_lanes(sum);
}

// The entries [from, to) of the chunk that starts at `start` that at least one row sees.
struct Range {
    std::int64_t start = 0;
    std::int64_t from = 0;
    std::int64_t to = 0;

    Range() = default;
    Range(std::int64_t start, std::int64_t begin, std::int64_t end, std::int64_t length)
        : start(start),
          from(begin > start ? begin - start : 0),
          to(end - start < length ? end - start : length) {}

    bool is_empty() const { return from >= to; }
    // Calls f(first entry, from, to) for each block; from and to are relative to that entry.
    template <class F>
    CHASKI_INLINE void for_blocks(const F& f) const {
        for (std::int64_t at = from / kBlock * kBlock; at < to; at += kBlock) {
            f(at, from > at ? from - at : 0, to - at < kBlock ? to - at : kBlock);
        }
    }
};

template <DType T>
void score(const View& view, const Range& range, const Workspace& w) {
    const Attention& job = view.job;
    const Keys<T> stored(job.keys, view.kv_head);
    range.for_blocks([&](std::int64_t at, std::int64_t from, std::int64_t to) {
        KeyBlock keys;
        keys.find<T>(stored, job.cells + range.start + at, from, to, w.panels);
        if constexpr (T == DType::I16) {
            score_integers(w.quantized_queries, view.rows, keys, job.keys.size, w.weights + at, w.stride);
        } else {
            score_block<T>(w.queries, view.rows, keys, job.keys.size, w.weights + at, w.stride, w.widened);
        }
    });
}

template <DType T>
void add_weighted_values(const View& view, const Range& range, const Workspace& w, const Part& part) {
    const Attention& job = view.job;
    const std::byte* first = job.values.row(view.kv_head, 0);
    const std::int64_t bytes = row_bytes(T, job.value_size);
    range.for_blocks([&](std::int64_t at, std::int64_t from, std::int64_t to) {
        const std::byte* rows[kBlock];
        for (std::int64_t i = from; i < to; ++i) {
            rows[i - from] = first + job.cells[range.start + at + i] * bytes;
        }
        add_values<T>(w.weights + at + from, w.stride, view.rows, rows, to - from, job.value_size, part.sums,
                      w.widened);
    });
}

template <>
void add_weighted_values<DType::I16>(const View& view, const Range& range, const Workspace& w,
                                     const Part& part) {
    const Attention& job = view.job;
    range.for_blocks([&](std::int64_t at, std::int64_t from, std::int64_t to) {
        const ValueBlock block(job.values, view.kv_head, job.cells + range.start + at, from, to);
        quantize_weights(w.weights + at, w.stride, view.rows, block, kWeightSum, w.quantized_weights);
        add_integers(w.quantized_weights, view.rows, block, job.value_size, part.sums, w.widened);
    });
}

// The same for values that are the ends of keys.
template <DType T>
void add_weighted_latents(const View& view, const Range& range, const Workspace& w, const Part& part) {
    const Attention& job = view.job;
    const Keys<T> stored(job.keys, view.kv_head);
    const LatentRows place(job.keys.size, job.value_size);
    const std::int64_t columns = padded(job.value_size);
    range.for_blocks([&](std::int64_t at, std::int64_t from, std::int64_t to) {
        const std::int32_t* cells = job.cells + range.start + at;
        KeyBlock keys;
        keys.find<T>(stored, cells, from, to, w.panels);
        if constexpr (T == DType::I16) {
            auto* pairs = reinterpret_cast<std::int32_t*>(w.widened);
            const ScaledBlock block(job.keys, view.kv_head, cells, from, to);
            quantize_weights(w.weights + at, w.stride, view.rows, block, kWeightSumForKeys,
                             w.quantized_weights);
            pair_latents(keys, job.keys.size, place, pairs);
            const auto right = [&](std::int64_t k, std::int64_t n) __attribute__((always_inline)) {
                return load_i32(pairs + k * place.stride + place.skipped + n);
            };
            add_all_columns(w.quantized_weights, view.rows, block, right, part.sums, columns);
        } else {
            widen_latents<T>(keys, job.keys.size, place, w.widened);
            const Widened rows{w.widened + from * place.stride + place.skipped, place.stride};
            multiply(w.weights + at + from, w.stride, rows, part.sums, columns, view.rows, columns, to - from,
                     true);
        }
    });
}

// Turns the scores of a chunk into weights for all rows. It computes the maxima of several rows before their
// weights, so that no row waits for its own maximum.
void weigh(const View& view, const Range& range, const Workspace& w, const Part& part) {
    const Attention& job = view.job;
    const std::int64_t used = padded(range.to);
    for (std::int64_t first = 0; first < view.rows; first += kSoftmaxRows) {
        const std::int64_t left = view.rows - first;
        const int count = static_cast<int>(left < kSoftmaxRows ? left : kSoftmaxRows);
        float* scores = w.weights + first * w.stride;
        Range seen[kSoftmaxRows];
        for (int i = 0; i < count; ++i) {
            const std::int64_t r = first + i;
            const Span& span = view.span(r);
            seen[i] = Range(range.start, span.begin, span.end, job.length);
            if (seen[i].is_empty()) continue;
            float* own = scores + i * w.stride;
            if (job.distances != nullptr) {
                add_distances(view, r, range.start, seen[i].from, seen[i].to, own);
            }
            part.maxima[r] = highest_score(own, seen[i].from, seen[i].to, job.cap);
        }
        for (int i = 0; i < count; ++i) {
            const std::int64_t r = first + i;
            float* own = scores + i * w.stride;
            if (seen[i].is_empty()) {
                std::memset(own, 0, used * sizeof(float));
            } else {
                part.totals[r] = softmax_weights(own, seen[i].from, seen[i].to, used, part.maxima[r]);
            }
        }
    }
}

// Computes one chunk of the history for all rows of a tile.
void attend(const View& view, std::int64_t start, const Workspace& w, Part part) {
    const Attention& job = view.job;
    const Range range(start, view.begin, view.end, job.length);
    with_type(job.keys.type, [&](auto type) { score<type.value>(view, range, w); });
    part.clear(view.rows);
    weigh(view, range, w, part);
    with_type(job.values.type, [&](auto type) {
        if (job.values_in_keys()) return add_weighted_latents<type.value>(view, range, w, part);
        add_weighted_values<type.value>(view, range, w, part);
    });
}

float exp_of(float x) {
    float lanes[kLanes];
    store_f32(lanes, exp(splat(x)));
    return lanes[0];
}

// The factors of row r of the state and of the next chunk.
CHASKI_INLINE void join_row(const Part& next, std::int64_t r, float level, float before, float added,
                            const Part& all) {
    all.totals[r] = all.totals[r] * before + next.totals[r] * added;
    all.maxima[r] = level;
    float* sums = all.sums + r * all.value_size;
    const float* more = next.sums + r * all.value_size;
    for (std::int64_t d = 0; d < all.value_size; d += kLanes) {
        store_f32(sums + d, fma(load_f32(more + d), splat(added), load_f32(sums + d) * splat(before)));
    }
}

// Adds the next chunk to the state, 16 rows at a time.
void join(const Part& next, std::int64_t rows, const Part& all) {
    for (std::int64_t first = 0; first < rows; first += kLanes) {
        const F32x16 known = load_f32(all.maxima + first), more = load_f32(next.maxima + first);
        const F32x16 level = max(known, more);
        float levels[kLanes], before[kLanes], added[kLanes];
        store_f32(levels, level);
        store_f32(before, exp(known - level));
        store_f32(added, exp(more - level));
        for (std::int64_t r = first; r < rows && r < first + kLanes; ++r) {
            if (next.maxima[r] == kHidden) continue;
            join_row(next, r, levels[r - first], before[r - first], added[r - first], all);
        }
    }
}

// Adds the sinks to the totals, divides by them, and writes the result.
void finish(const View& view, const Part& all) {
    const Attention& job = view.job;
    for (std::int64_t r = 0; r < view.rows; ++r) {
        float total = all.totals[r];
        float factor = 1.0f;
        if (job.sinks != nullptr) {
            const float sink = job.sinks[view.head(r)];
            const float level = sink > all.maxima[r] ? sink : all.maxima[r];
            factor = exp_of(all.maxima[r] - level);
            total = total * factor + exp_of(sink - level);
        }
        factor /= total;
        const std::int64_t token = view.token(r);
        float* y = job.y + (token * job.heads + view.head(r)) * job.value_size;
        const float* sums = all.sums + r * all.value_size;
        for (std::int64_t d = 0; d < job.value_size; ++d) y[d] = sums[d] * factor;
    }
}

}  // namespace

std::size_t attention_scratch(const Attention& job, std::int64_t rows) {
    return Workspace(job, rows, nullptr).bytes;
}

void attention(const Attention& job, Tile tile, std::int64_t kv_head, std::byte* scratch) {
    const View view(job, tile, kv_head);
    const Workspace w(job, view.rows, scratch);
    const Part part(w.part, view.rows, job.value_size);
    Part all(w.all, view.rows, job.value_size);
    load_queries(view, w);
    all.clear(view.rows);
    for (std::int64_t start = view.first_start(); start < view.end; start += job.length) {
        attend(view, start, w, part);
        join(part, view.rows, all);
    }
    finish(view, all);
}

void attention_chunk(const Attention& job, Tile tile, std::int64_t kv_head, std::int64_t chunk, float* part,
                     std::byte* scratch) {
    const View view(job, tile, kv_head);
    const Workspace w(job, view.rows, scratch);
    load_queries(view, w);
    attend(view, view.first_start() + chunk * job.length, w, Part(part, view.rows, job.value_size));
}

void attention_join(const Attention& job, Tile tile, std::int64_t kv_head, std::int64_t chunks,
                    const float* parts, std::byte* scratch) {
    const View view(job, tile, kv_head);
    Part all(reinterpret_cast<float*>(scratch), view.rows, job.value_size);
    all.clear(view.rows);
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
        auto* part = const_cast<float*>(parts + chunk * part_floats(view.rows, job.value_size));
        join(Part(part, view.rows, job.value_size), view.rows, all);
    }
    finish(view, all);
}

void index_scores(const Attention& heads, const float* weights, float least, std::int64_t chunk,
                  float* scores, std::byte* scratch) {
    const View view(heads, {0, 1}, 0);
    const Workspace w(heads, view.rows, scratch);
    load_queries(view, w);
    const Range range(view.first_start() + chunk * heads.length, view.begin, view.end, heads.length);
    with_type(heads.keys.type, [&](auto type) { score<type.value>(view, range, w); });
    for (std::int64_t first = range.from / kLanes * kLanes; first < range.to; first += kLanes) {
        F32x16 sum = splat(0.0f);
        for (std::int64_t h = 0; h < view.rows; ++h) {
            const F32x16 product = load_f32(w.weights + h * w.stride + first);
            const float weight = weights == nullptr ? 1.0f : weights[h];
            sum = fma(splat(weight), max(product, splat(least)), sum);
        }
        float lanes[kLanes];
        store_f32(lanes, sum);
        const std::int64_t from = first < range.from ? range.from : first;
        const std::int64_t to = first + kLanes < range.to ? first + kLanes : range.to;
        for (std::int64_t i = from; i < to; ++i) {
            scores[range.start + i - view.begin] = lanes[i - first];
        }
    }
}

}  // namespace chaski::CHASKI_ISA
