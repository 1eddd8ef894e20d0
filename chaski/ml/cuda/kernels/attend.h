// Attention of a thread block to a chunk of scattered cells, by the rule in ops.h and, for integers, the rule
// in integers.h.
#pragma once

#include "scores.h"

namespace chaski::CHASKI_ISA {

constexpr bool kIntegerValues = kValues == DType::I16;

// The state of a thread block, in shared memory.
struct Workspace : Queries {
    float weights[kRows][kChunk];
    alignas(16) int16_t quantized[kRows][kChunk];  // weights
    float steps[kRows][kBlocks];
    float products[kBlocks][kRows][kValueSize];
    float value_scales[kChunk];
    int32_t cells[kChunk];
    float highest[kRows][kWarps];
    float maxima[kRows];
    float totals[kRows];
    float sums[kRows][kValueSize];
};

// Quantizes the weights of a block times the scales of its values, with a group of 16 lanes.
CHASKI_INLINE void quantize_weights(int row, int at, Workspace& w) {
    const float *weights = &w.weights[row][at], *scales = w.value_scales + at;
    float u[kBlock / kLanes], sum = 0.0f;
    I32x16 bits = splat(0);
    for (int i = 0; i < kBlock / kLanes; ++i) {
        u[i] = weights[i * kLanes + lane()] * scales[i * kLanes + lane()];
        bits = max(bits, magnitude_bits({u[i]}));
        sum = sum + u[i];
    }
    const float largest = device::as_float(reduce_max(bits));
    constexpr float kSum = kValuesInKeys ? kWeightSumForKeys : kWeightSum;
    const float by_size = kWeightLimit / largest, by_sum = kSum / sum_lanes({sum});
    const bool usable = is_usable(largest);
    const float factor = usable ? (by_size < by_sum ? by_size : by_sum) : 0.0f;
    for (int i = 0; i < kBlock / kLanes; ++i) {
        const int32_t value = usable ? device::round(u[i] * factor) : 0;
        w.quantized[row][at + i * kLanes + lane()] = static_cast<int16_t>(value);
    }
    if (lane() == 0) w.steps[row][at / kBlock] = usable ? 1.0f / factor : unusable_scale(largest);
}

// An element of a value that is not an integer.
CHASKI_INLINE float value_of(const StorageOf<kValues>& values, int64_t kv_head, int64_t cell, int d) {
    if constexpr (StorageOf<kValues>::kInBlocks) {
        return values.decoded(kv_head, cell, kFirstOfValue + d);
    } else {
        return load_element<kValues>(values.element(kv_head, cell, kFirstOfValue + d));
    }
}

// products[block][row][i] = weights · values. For plain types, products[0] is the sum over the chunk. At
// least one row sees each of the entries from..to - 1 of the chunk.
CHASKI_INLINE void weigh_values(const Attention& a, int64_t kv_head, int from, int to, Workspace& w) {
    const StorageOf<kValues> values{a.values};
    if constexpr (kIntegerValues) {
        for (int item = static_cast<int>(threadIdx.x); item < kBlocks * kValueSize / 2; item += kChunk) {
            const int block = item / (kValueSize / 2), pair = item % (kValueSize / 2);
            int32_t sums[kRows][2] = {};
            constexpr int kAhead = 16;  // entries
#pragma unroll 1
            for (int i = block * kBlock; i < (block + 1) * kBlock; i += kAhead) {
                if (i + kAhead <= from || i >= to) continue;
                int32_t v[kAhead];
                for (int j = 0; j < kAhead; ++j) {
                    const bool is_seen = i + j >= from && i + j < to;
                    const uint8_t* at = values.element(kv_head, w.cells[i + j], kFirstOfValue + 2 * pair);
                    v[j] = is_seen ? *reinterpret_cast<const int32_t*>(at) : 0;
                }
#pragma unroll
                for (int r = 0; r < kRows; ++r) {
                    for (int j = 0; j < kAhead; j += 2) {
                        const int32_t u = *reinterpret_cast<const int32_t*>(&w.quantized[r][i + j]);
                        const int32_t first = static_cast<int16_t>(u), second = u >> 16;
                        sums[r][0] +=
                            first * static_cast<int16_t>(v[j]) + second * static_cast<int16_t>(v[j + 1]);
                        sums[r][1] += first * (v[j] >> 16) + second * (v[j + 1] >> 16);
                    }
                }
            }
            for (int r = 0; r < kRows; ++r) {
                w.products[block][r][2 * pair] = static_cast<float>(sums[r][0]);
                w.products[block][r][2 * pair + 1] = static_cast<float>(sums[r][1]);
            }
        }
    } else {
        for (int d = static_cast<int>(threadIdx.x); d < kValueSize; d += kChunk) {
            float sums[kRows] = {};
            for (int i = from; i < to; ++i) {
                const float v = value_of(values, kv_head, w.cells[i], d);
                for (int r = 0; r < kRows; ++r) sums[r] = device::fma(w.weights[r][i], v, sums[r]);
            }
            for (int r = 0; r < kRows; ++r) w.products[0][r][d] = sums[r];
        }
    }
}

// The sum over the chunk for a row and an element.
CHASKI_INLINE float sum_of_chunk(int row, int d, const Workspace& w) {
    if constexpr (!kIntegerValues) return w.products[0][row][d];
    float y = 0.0f;
    for (int block = 0; block < kBlocks; ++block) {
        y = device::fma(w.products[block][row][d], w.steps[row][block], y);
    }
    return y;
}

// The entries of a history: their cells, and those that a token sees.
struct History {
    const Attention& a;

    CHASKI_INLINE int32_t cell(int32_t entry) const { return a.cells[entry]; }
    CHASKI_INLINE Span seen_by(int32_t token) const { return Span(a.spans + 3 * token); }
};

// Computes scores, weights and sums of the chunk that starts with entry `start`.
template <class Entries>
CHASKI_INLINE void attend(const Attention& a, const Entries& entries, const Rows& rows, int32_t start,
                          int32_t begin, int32_t end, Workspace& w) {
    const auto own = static_cast<int>(threadIdx.x);
    const int from = begin > start ? begin - start : 0, to = end - start < kChunk ? end - start : kChunk;
    const bool is_seen = own >= from && own < to;
    const int64_t cell = is_seen ? entries.cell(start + own) : 0;
    w.cells[own] = static_cast<int32_t>(cell);
    if constexpr (kIntegerKeys) w.key_scales[own] = StorageOf<kKeys>{a.keys}.scales(rows.kv_head)[cell];
    if constexpr (kIntegerValues) {
        w.value_scales[own] = is_seen ? StorageOf<kValues>{a.values}.scales(rows.kv_head)[cell] : 0.0f;
    }
    float scores[kRows];
    if (is_seen) score(a, rows.kv_head, cell, w, scores);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        float s = -infinity();
        if (is_seen && r < rows.count()) {
            const int32_t token = rows.token_of(r);
            const Span span = entries.seen_by(token);
            const int32_t entry = start + own;
            if (entry >= span.begin && entry < span.end) {
                s = scores[r];
                if (a.distances != nullptr) {
                    int64_t apart = entry - span.begin + span.first - a.positions[token];
                    apart = apart < -a.reach ? -a.reach : apart > a.reach ? a.reach : apart;
                    s = s + a.distances[rows.head_of(r) * (2 * a.reach + 1) + a.reach + apart];
                }
                if (a.cap > 0.0f) s = bounded(splat(s), a.cap).v;
            }
        }
        scores[r] = s;
        float highest = s;
        for (int apart = 1; apart < 32; apart *= 2) {
            highest = max(splat(highest), splat(device::from_thread(highest, apart))).v;
        }
        if (own % 32 == 0) w.highest[r][own / 32] = highest;
    }
    barrier();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        float highest = w.highest[r][0];
        for (int i = 1; i < kWarps; ++i) highest = max(splat(highest), splat(w.highest[r][i])).v;
        w.weights[r][own] = scores[r] == -infinity() ? 0.0f : exp(splat(scores[r] - highest)).v;
        if (own == 0) w.maxima[r] = highest;
    }
    barrier();
    for (int r = group(); r < kRows; r += kChunk / kLanes) {
        float sum = 0.0f;
        for (int i = lane(); i < kChunk; i += kLanes) sum = sum + w.weights[r][i];
        sum = sum_lanes({sum});
        if (lane() == 0) w.totals[r] = sum;
    }
    if constexpr (kIntegerValues) {
        for (int item = group(); item < kRows * kBlocks; item += kChunk / kLanes) {
            quantize_weights(item / kBlocks, item % kBlocks * kBlock, w);
        }
    }
    barrier();
    weigh_values(a, rows.kv_head, from, to, w);
    barrier();
}

// The sums of a row that a thread block computes from the first chunk of a history to the last.
struct Sums {
    Known known[kRows];  // the same in all threads

    CHASKI_INLINE explicit Sums(Workspace& w) {
        for (int i = static_cast<int>(threadIdx.x); i < kRows * kValueSize; i += kChunk) {
            w.sums[i / kValueSize][i % kValueSize] = 0.0f;
        }
    }
    // Adds the entries [begin, end), whose first chunk starts with entry `start`.
    template <class Entries>
    CHASKI_INLINE void add(const Attention& a, const Entries& entries, const Rows& rows, const Sight& sight,
                           Workspace& w) {
        for (int32_t start = sight.start; start < sight.end; start += kChunk) {
            attend(a, entries, rows, start, sight.begin, sight.end, w);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                if (r >= rows.count() || !known[r].join(w.maxima[r], w.totals[r])) continue;
                for (int d = static_cast<int>(threadIdx.x); d < kValueSize; d += kChunk) {
                    float& sum = w.sums[r][d];
                    sum = device::fma(sum_of_chunk(r, d, w), known[r].added, sum * known[r].before);
                }
            }
            barrier();
        }
    }
    CHASKI_INLINE void write(const Attention& a, const Rows& rows, const Workspace& w) const {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            if (r >= rows.count()) continue;
            const float factor = last_factor(a, rows.head_of(r), known[r].maximum, known[r].total);
            float* y = a.y + (rows.token_of(r) * a.heads + rows.head_of(r)) * kValueSize;
            for (int d = static_cast<int>(threadIdx.x); d < kValueSize; d += kChunk) {
                y[d] = w.sums[r][d] * factor;
            }
        }
    }
};

}  // namespace chaski::CHASKI_ISA
