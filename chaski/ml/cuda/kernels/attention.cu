// Attention over scattered cells, by the rule in ops.h and, for integers, that in integers.h. Compiled for
// the types of keys and values (CHASKI_KEYS, CHASKI_VALUES).
//
// A block of threads has the query heads that share one key/value head, of one token. It goes through the
// history in chunks of 256 entries, one entry for each thread. With few tokens each chunk is a block's, and
// `attention_join` joins them in order; with many, one block does all of a token's.
#include "storage.h"

namespace chaski::CHASKI_ISA {

constexpr DType kKeys = CHASKI_KEYS, kValues = CHASKI_VALUES;
constexpr int kChunk = 256, kBlock = 64, kBlocks = kChunk / kBlock;
constexpr int kRows = 4;  // query heads at a time

struct Attention {
    const float* q;  // [token][head][size]
    Count n;
    float* y;  // [token][head][value size]
    Storage keys;
    Storage values;
    const int32_t* cells;
    const int32_t* spans;  // [token][begin, end, first]
    const float* sinks;    // [head], or null
    int64_t heads;
    float scale;
    float cap;
    const int32_t* positions;  // [token], where there are distances
    const float* distances;    // [head][2 · reach + 1], or null
    int64_t reach;
    const int32_t* tasks;  // [chunk of a token][token, number of the chunk], where chunks are apart
    Count num_tasks;
    const int32_t* starts;  // [token]: the first of its tasks
    float* parts;           // [task][head][value size, maximum, total]
};

struct Span {
    int32_t begin;
    int32_t end;
    int32_t start;  // of the first chunk

    CHASKI_INLINE Span(const int32_t* span)
        : begin(span[0]), end(span[1]), start(span[0] - span[2] + span[2] / kChunk * kChunk) {}
};

// What a block of threads knows, in shared memory.
struct Workspace {
    float* queries;       // [row][size]
    int16_t* integers;    // [row][size], of queries
    float* query_scales;  // [row]
    float* weights;       // [row][chunk]
    int16_t* quantized;   // [row][chunk], of weights
    float* steps;         // [row][block]
    float* products;      // [block][row][value size]
    float* value_scales;  // [chunk]
    int32_t* cells;       // [chunk]
    float* sums;          // [row][value size]
    float* maxima;        // [row], of what is known, then of the chunk
    float* totals;        // [row], likewise

    CHASKI_INLINE Workspace(int64_t size, int64_t value_size) {
        auto* at = reinterpret_cast<float*>(device::shared());
        const auto take = [&](int64_t floats) {
            float* taken = at;
            at += (floats + 3) / 4 * 4;
            return taken;
        };
        queries = take(kRows * size);
        integers = reinterpret_cast<int16_t*>(take(kRows * size / 2 + 1));
        query_scales = take(kRows);
        weights = take(kRows * kChunk);
        quantized = reinterpret_cast<int16_t*>(take(kRows * kChunk / 2));
        steps = take(kRows * kBlocks);
        products = take(kBlocks * kRows * value_size);
        value_scales = take(kChunk);
        cells = reinterpret_cast<int32_t*>(take(kChunk));
        sums = take(kRows * value_size);
        maxima = take(2 * kRows);
        totals = take(2 * kRows);
    }
};

CHASKI_INLINE int16_t low(int32_t pair) { return static_cast<int16_t>(pair); }
CHASKI_INLINE int16_t high(int32_t pair) { return static_cast<int16_t>(pair >> 16); }

struct Rows {
    int64_t token;
    int64_t kv_head;
    int64_t first;  // head of row 0
    int count;
};

CHASKI_INLINE void load_queries(const Attention& a, const Rows& rows, const Workspace& w) {
    const int64_t size = a.keys.size;
    for (int64_t i = threadIdx.x; i < kRows * size; i += blockDim.x) {
        const int64_t r = i / size;
        const float* q = a.q + (rows.token * a.heads + rows.first + r) * size;
        w.queries[i] = r < rows.count ? q[i % size] * a.scale : 0.0f;
    }
    barrier();
    if constexpr (kKeys == DType::I16) {
        for (int r = group(); r < kRows; r += num_groups()) {
            const float* row = w.queries + r * size;
            float scale;
            const float factor = factor_of(size, false, [&](int64_t i) { return row[i]; }, &scale);
            for (int64_t i = lane(); i < size; i += kLanes) {
                w.integers[r * size + i] =
                    static_cast<int16_t>(factor == 0.0f ? 0 : device::round(row[i] * factor));
            }
            if (lane() == 0) w.query_scales[r] = scale;
        }
        barrier();
    }
}

// scores[row] of the key in a cell.
CHASKI_INLINE void score(const Attention& a, int64_t kv_head, int64_t cell, const Workspace& w,
                         float (&scores)[kRows]) {
    const StorageOf<kKeys> keys{a.keys};
    const int64_t size = a.keys.size;
    if constexpr (kKeys == DType::I16) {
        const auto* pairs = reinterpret_cast<const int32_t*>(keys.lane_of(kv_head, cell));
        int32_t sums[kRows] = {};
#pragma unroll 16
        for (int64_t k = 0; k < size / 2; ++k) {
            const int32_t key = pairs[k * kLanes];
            for (int r = 0; r < kRows; ++r) {
                const int32_t q = reinterpret_cast<const int32_t*>(w.integers + r * size)[k];
                sums[r] += low(key) * low(q) + high(key) * high(q);
            }
        }
        const float scale = keys.scales(kv_head)[cell];
        for (int r = 0; r < kRows; ++r) {
            scores[r] = static_cast<float>(sums[r]) * (scale * w.query_scales[r]);
        }
    } else {
        for (float& s : scores) s = 0.0f;
        for (int64_t k = 0; k < size; ++k) {
            const float key = load_element<kKeys>(keys.element(kv_head, cell, k));
            for (int r = 0; r < kRows; ++r) scores[r] = device::fma(w.queries[r * size + k], key, scores[r]);
        }
    }
}

// Scores of a row to weights relative to their maximum, by a group of 16 lanes.
CHASKI_INLINE void softmax_weights(float* weights, float* maximum, float* total) {
    float highest = -infinity();
    for (int i = lane(); i < kChunk; i += kLanes) highest = max(splat(highest), splat(weights[i])).v;
    highest = max_lanes({highest});
    float sum = 0.0f;
    for (int i = lane(); i < kChunk; i += kLanes) {
        const float weight = weights[i] == -infinity() ? 0.0f : exp(splat(weights[i] - highest)).v;
        weights[i] = weight;
        sum = sum + weight;
    }
    sum = sum_lanes({sum});
    if (lane() == 0) {
        *maximum = highest;
        *total = sum;
    }
}

// The weights of a block times the scales of its values, in integers, by a group of 16 lanes.
CHASKI_INLINE void quantize_weights(const float* weights, const float* scales, int16_t* quantized, float* step) {
    float u[kBlock / kLanes], sum = 0.0f;
    I32x16 bits = splat(0);
    for (int i = 0; i < kBlock / kLanes; ++i) {
        u[i] = weights[i * kLanes + lane()] * scales[i * kLanes + lane()];
        bits = max(bits, magnitude_bits({u[i]}));
        sum = sum + u[i];
    }
    const float largest = device::as_float(reduce_max(bits));
    const float by_size = kWeightLimit / largest, by_sum = kWeightSum / sum_lanes({sum});
    const bool usable = is_usable(largest);
    const float factor = usable ? (by_size < by_sum ? by_size : by_sum) : 0.0f;
    for (int i = 0; i < kBlock / kLanes; ++i) {
        quantized[i * kLanes + lane()] = static_cast<int16_t>(usable ? device::round(u[i] * factor) : 0);
    }
    if (lane() == 0) *step = usable ? 1.0f / factor : unusable_scale(largest);
}

// products[block][row][i] = weights · values, or, of plain types, what the chunk adds up to in products[0].
CHASKI_INLINE void weigh_values(const Attention& a, int64_t kv_head, int from, int to, const Workspace& w) {
    const StorageOf<kValues> values{a.values};
    const int64_t size = a.values.size;
    if constexpr (kValues == DType::I16) {
        for (int64_t item = threadIdx.x; item < kBlocks * size / 2; item += blockDim.x) {
            const int64_t block = item / (size / 2), pair = item % (size / 2);
            const int begin = static_cast<int>(block) * kBlock;
            int32_t sums[kRows][2] = {};
#pragma unroll 8
            for (int i = begin; i < begin + kBlock; i += 2) {
                int32_t v[2];
                for (int j = 0; j < 2; ++j) {
                    const bool is_seen = i + j >= from && i + j < to;
                    v[j] = is_seen
                               ? reinterpret_cast<const int32_t*>(values.row(kv_head, w.cells[i + j]))[pair]
                               : 0;
                }
                for (int r = 0; r < kRows; ++r) {
                    const int32_t u = *reinterpret_cast<const int32_t*>(w.quantized + r * kChunk + i);
                    sums[r][0] += low(u) * low(v[0]) + high(u) * low(v[1]);
                    sums[r][1] += low(u) * high(v[0]) + high(u) * high(v[1]);
                }
            }
            for (int r = 0; r < kRows; ++r) {
                float* to_row = w.products + (block * kRows + r) * size + 2 * pair;
                to_row[0] = static_cast<float>(sums[r][0]);
                to_row[1] = static_cast<float>(sums[r][1]);
            }
        }
    } else {
        for (int64_t d = threadIdx.x; d < size; d += blockDim.x) {
            float sums[kRows] = {};
            for (int i = from; i < to; ++i) {
                const float v = load_element<kValues>(values.element(kv_head, w.cells[i], d));
                for (int r = 0; r < kRows; ++r) sums[r] = device::fma(w.weights[r * kChunk + i], v, sums[r]);
            }
            for (int r = 0; r < kRows; ++r) w.products[r * size + d] = sums[r];
        }
    }
}

// What the chunk adds up to for a row and an element.
CHASKI_INLINE float sum_of_chunk(int64_t size, int64_t row, int64_t d, const Workspace& w) {
    if constexpr (kValues != DType::I16) return w.products[row * size + d];
    float y = 0.0f;
    for (int block = 0; block < kBlocks; ++block) {
        y = device::fma(w.products[(block * kRows + row) * size + d], w.steps[row * kBlocks + block], y);
    }
    return y;
}

CHASKI_INLINE void attend(const Attention& a, const Rows& rows, const Span& span, int32_t start,
                          const Workspace& w) {
    const auto own = static_cast<int>(threadIdx.x);
    const int from = span.begin > start ? span.begin - start : 0;
    const int to = span.end - start < kChunk ? span.end - start : kChunk;
    const bool is_seen = own >= from && own < to;
    const int64_t cell = is_seen ? a.cells[start + own] : 0;
    float scores[kRows];
    if (is_seen) score(a, rows.kv_head, cell, w, scores);
    for (int r = 0; r < kRows; ++r) {
        float s = is_seen && r < rows.count ? scores[r] : -infinity();
        if (is_seen && r < rows.count) {
            if (a.distances != nullptr) {
                int64_t apart = start + own - span.begin + a.spans[3 * rows.token + 2] - a.positions[rows.token];
                apart = apart < -a.reach ? -a.reach : apart > a.reach ? a.reach : apart;
                s = s + a.distances[(rows.first + r) * (2 * a.reach + 1) + a.reach + apart];
            }
            if (a.cap > 0.0f) s = bounded(splat(s), a.cap).v;
        }
        w.weights[r * kChunk + own] = s;
    }
    w.cells[own] = static_cast<int32_t>(cell);
    if constexpr (kValues == DType::I16) {
        w.value_scales[own] = is_seen ? StorageOf<kValues>{a.values}.scales(rows.kv_head)[cell] : 0.0f;
    }
    barrier();
    for (int r = group(); r < kRows; r += num_groups()) {
        softmax_weights(w.weights + r * kChunk, w.maxima + kRows + r, w.totals + kRows + r);
    }
    barrier();
    if constexpr (kValues == DType::I16) {
        for (int item = group(); item < kRows * kBlocks; item += num_groups()) {
            const int at = item / kBlocks * kChunk + item % kBlocks * kBlock;
            quantize_weights(w.weights + at, w.value_scales + item % kBlocks * kBlock, w.quantized + at,
                             w.steps + item);
        }
        barrier();
    }
    weigh_values(a, rows.kv_head, from, to, w);
    barrier();
}

// y of one row with the factor that its sums get.
CHASKI_INLINE float last_factor(const Attention& a, int64_t head, float maximum, float total) {
    float factor = 1.0f;
    if (a.sinks != nullptr) {
        const float sink = a.sinks[head];
        const float level = sink > maximum ? sink : maximum;
        factor = exp(splat(maximum - level)).v;
        total = total * factor + exp(splat(sink - level)).v;
    }
    return factor / total;
}

// Takes the next chunk into what is known of a row.
struct Known {
    float maximum = -infinity();
    float total = 0.0f;
    float before = 1.0f;
    float added = 0.0f;

    CHASKI_INLINE bool join(float next_maximum, float next_total) {
        if (next_maximum == -infinity()) return false;
        const float level = max(splat(maximum), splat(next_maximum)).v;
        before = exp(splat(maximum - level)).v;
        added = exp(splat(next_maximum - level)).v;
        total = total * before + next_total * added;
        maximum = level;
        return true;
    }
};

CHASKI_INLINE Rows rows_of(const Attention& a, int64_t token, int64_t kv_head, int64_t tile) {
    const int64_t each = a.heads / a.keys.heads, left = each - tile * kRows;
    return {token, kv_head, kv_head * each + tile * kRows, static_cast<int>(left < kRows ? left : kRows)};
}

// A block of threads for each task, key/value head, and tile of kRows query heads.
CHASKI_KERNEL(attention_chunk, Attention) {
    if (static_cast<int64_t>(blockIdx.x) >= *a.num_tasks) return;
    const int32_t* task = a.tasks + 2 * blockIdx.x;
    const Rows rows = rows_of(a, task[0], blockIdx.y, blockIdx.z);
    const Span span(a.spans + 3 * rows.token);
    const int64_t size = a.values.size;
    const Workspace w(a.keys.size, size);
    load_queries(a, rows, w);
    attend(a, rows, span, span.start + task[1] * kChunk, w);
    float* parts = a.parts + (static_cast<int64_t>(blockIdx.x) * a.heads + rows.first) * (size + 2);
    for (int64_t i = threadIdx.x; i < rows.count * size; i += blockDim.x) {
        parts[i / size * (size + 2) + i % size] = sum_of_chunk(size, i / size, i % size, w);
    }
    if (static_cast<int>(threadIdx.x) < rows.count) {
        float* own = parts + threadIdx.x * (size + 2) + size;
        own[0] = w.maxima[kRows + threadIdx.x];
        own[1] = w.totals[kRows + threadIdx.x];
    }
}

// A block of threads for each token and head. Shared memory: the maximum and the total of each chunk.
CHASKI_KERNEL(attention_join, Attention) {
    const int64_t token = blockIdx.x, head = blockIdx.y, size = a.values.size;
    if (token >= *a.n) return;
    const int64_t first = a.starts[token], count = a.starts[token + 1] - first;
    const float* parts = a.parts + (first * a.heads + head) * (size + 2);
    const int64_t stride = a.heads * (size + 2);
    auto* levels = reinterpret_cast<float*>(device::shared());
    for (int64_t i = threadIdx.x; i < 2 * count; i += blockDim.x) levels[i] = parts[i / 2 * stride + size + i % 2];
    barrier();
    for (int64_t d = threadIdx.x; d < size; d += blockDim.x) {
        Known known;
        float sum = 0.0f;
#pragma unroll 4
        for (int64_t i = 0; i < count; ++i) {
            const float part = parts[i * stride + d];
            if (known.join(levels[2 * i], levels[2 * i + 1])) {
                sum = device::fma(part, known.added, sum * known.before);
            }
        }
        a.y[(token * a.heads + head) * size + d] =
            sum * last_factor(a, head, known.maximum, known.total);
    }
}

// A block of threads for each token, key/value head, and tile of kRows query heads.
CHASKI_KERNEL(attention, Attention) {
    if (static_cast<int64_t>(blockIdx.x) >= *a.n) return;
    const Rows rows = rows_of(a, blockIdx.x, blockIdx.y, blockIdx.z);
    const Span span(a.spans + 3 * rows.token);
    const int64_t size = a.values.size;
    const Workspace w(a.keys.size, size);
    load_queries(a, rows, w);
    for (int64_t i = threadIdx.x; i < kRows * size; i += blockDim.x) w.sums[i] = 0.0f;
    Known known[kRows];  // the same in all threads
    for (int32_t start = span.start; start < span.end; start += kChunk) {
        attend(a, rows, span, start, w);
        for (int r = 0; r < rows.count; ++r) {
            if (!known[r].join(w.maxima[kRows + r], w.totals[kRows + r])) continue;
            for (int64_t d = threadIdx.x; d < size; d += blockDim.x) {
                float& sum = w.sums[r * size + d];
                sum = device::fma(sum_of_chunk(size, r, d, w), known[r].added, sum * known[r].before);
            }
        }
        barrier();
    }
    for (int r = 0; r < rows.count; ++r) {
        const float factor = last_factor(a, rows.first + r, known[r].maximum, known[r].total);
        float* y = a.y + (rows.token * a.heads + rows.first + r) * size;
        for (int64_t d = threadIdx.x; d < size; d += blockDim.x) y[d] = w.sums[r * size + d] * factor;
    }
}

}  // namespace chaski::CHASKI_ISA
