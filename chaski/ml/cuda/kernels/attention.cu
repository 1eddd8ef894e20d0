// Attention over scattered cells, by the rule in ops.h and, for integers, that in integers.h. Compiled for
// the types of keys and values (CHASKI_KEYS, CHASKI_VALUES).
//
// A block of threads has the query heads that share one key/value head, of one token or of some neighbours.
// It goes through the history in chunks of 256 entries, one entry for each thread. With few tokens each chunk
// is a block's, and `attention_join` joins them in order; with many, one block does all that some tokens see.
#include "quantize.h"
#include "storage.h"

namespace chaski::CHASKI_ISA {

constexpr DType kKeys = CHASKI_KEYS, kValues = CHASKI_VALUES;
constexpr int kSize = CHASKI_SIZE, kValueSize = CHASKI_VALUE_SIZE;  // of a head
constexpr int kRows = CHASKI_ROWS;                                  // queries at a time
constexpr int kChunk = 256, kBlock = 64, kBlocks = kChunk / kBlock, kWarps = kChunk / 32;
constexpr bool kIntegerKeys = kKeys == DType::I16, kIntegerValues = kValues == DType::I16;
constexpr bool kBlockKeys = StorageOf<kKeys>::kInBlocks;
// Whether tensor instructions multiply, for which a number of 16 bits is two bytes.
constexpr bool kTensor =
    kIntegerKeys && kIntegerValues && kSize % 32 == 0 && kValueSize % 16 == 0 && kRows == 16;
constexpr int kBands = (kValueSize + 16 * kWarps - 1) / (16 * kWarps);  // of 16 elements, for each warp

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
    const int32_t* tiles;   // [tile][first token, tokens], where they are not: neighbours of one sequence
    Count num_tiles;
    Quantized quantized;  // of y, by `attention_join`
};

struct Span {
    int32_t begin;
    int32_t end;
    int32_t first;  // position of entry `begin`

    CHASKI_INLINE explicit Span(const int32_t* span) : begin(span[0]), end(span[1]), first(span[2]) {}
    // The entry that the chunk with `begin` starts at.
    CHASKI_INLINE int32_t start() const { return begin - first + first / kChunk * kChunk; }
};

// What a block of threads knows, in shared memory.
struct Workspace {
    union {
        float floats[kRows][kSize];
        alignas(16) int16_t integers[kRows][kSize];
        alignas(16) uint8_t digits[2][kRows][kSize + 16];  // low, high
        struct {
            alignas(4) int8_t values[kRows][kSize];
            float scales[kRows][kSize / 32 + 1];
        } blocks;
    } queries;
    float query_scales[kRows];
    float weights[kRows][kChunk];
    union {
        alignas(16) int16_t integers[kRows][kChunk];
        alignas(16) uint8_t digits[2][kRows][kChunk + 16];
    } quantized;  // weights
    float steps[kRows][kBlocks];
    float products[kTensor ? 1 : kBlocks][kTensor ? 1 : kRows][kValueSize];
    float key_scales[kChunk];
    float value_scales[kChunk];
    int32_t cells[kChunk];
    float highest[kRows][kWarps];
    float maxima[kRows];
    float totals[kRows];
    float sums[kTensor ? 1 : kRows][kValueSize];
};

CHASKI_INLINE int32_t product_of_low(int32_t a, int32_t b) {
    return static_cast<int16_t>(a) * static_cast<int16_t>(b);
}
CHASKI_INLINE int32_t product_of_high(int32_t a, int32_t b) { return (a >> 16) * (b >> 16); }

// The queries of a block of threads: `heads` of a group for each token.
struct Rows {
    int32_t token;  // the first
    int tokens;
    int64_t kv_head;
    int64_t head;  // the first
    int heads;

    CHASKI_INLINE int count() const { return tokens * heads; }
    CHASKI_INLINE int32_t token_of(int r) const { return token + r / heads; }
    CHASKI_INLINE int64_t head_of(int r) const { return head + r % heads; }
};

CHASKI_INLINE Rows rows_of(const Attention& a, int32_t token, int tokens, int64_t kv_head, int tile) {
    const auto each = static_cast<int>(a.heads / a.keys.heads), left = each - tile * kRows;
    return {token, tokens, kv_head, kv_head * each + tile * kRows, left < kRows ? left : kRows};
}

// A block of 32 elements of a query, by the rule of activations in matmul.h, by a group of 16 lanes.
CHASKI_INLINE void quantize_query(const Attention& a, const Rows& rows, int r, int block, Workspace& w) {
    const bool exists = r < rows.count();
    const float* q = a.q + (rows.token_of(exists ? r : 0) * a.heads + rows.head_of(exists ? r : 0)) * kSize;
    float x[2];
    I32x16 bits = splat(0);
    for (int i = 0; i < 2; ++i) {
        x[i] = exists ? q[32 * block + 16 * i + lane()] * a.scale : 0.0f;
        bits = max(bits, magnitude_bits({x[i]}));
    }
    const float amax = device::as_float(reduce_max(bits));
    const bool usable = amax >= 1e-36f && amax < infinity();
    const float factor = usable ? 127.0f / amax : 0.0f;
    for (int i = 0; i < 2; ++i) {
        const int32_t value = usable ? device::round(x[i] * factor) : 0;
        w.queries.blocks.values[r][32 * block + 16 * i + lane()] = static_cast<int8_t>(value);
    }
    if (lane() == 0) w.queries.blocks.scales[r][block] = amax < 1e-36f ? 0.0f : amax / 127.0f;
}

CHASKI_INLINE void load_queries(const Attention& a, const Rows& rows, Workspace& w) {
    if constexpr (kIntegerKeys) {
        for (int r = group(); r < kRows; r += num_groups()) {
            const bool exists = r < rows.count();
            const float* q =
                a.q + (rows.token_of(exists ? r : 0) * a.heads + rows.head_of(exists ? r : 0)) * kSize;
            float scale;
            const auto x = [&](int64_t i) { return exists ? q[i] * a.scale : 0.0f; };
            const float factor = factor_of(kSize, false, x, &scale);
            for (int i = lane(); i < kSize; i += kLanes) {
                const int32_t value = factor == 0.0f ? 0 : device::round(x(i) * factor);
                if constexpr (kTensor) {
                    w.queries.digits[0][r][i] = static_cast<uint8_t>(value);
                    w.queries.digits[1][r][i] = static_cast<uint8_t>(value >> 8);
                } else {
                    w.queries.integers[r][i] = static_cast<int16_t>(value);
                }
            }
            if (lane() == 0) w.query_scales[r] = scale;
        }
    } else if constexpr (kBlockKeys) {
        constexpr int kBlocksOfRow = (kSize + 31) / 32;
        for (int item = group(); item < kRows * kBlocksOfRow; item += num_groups()) {
            quantize_query(a, rows, item / kBlocksOfRow, item % kBlocksOfRow, w);
        }
    } else {
        for (int i = static_cast<int>(threadIdx.x); i < kRows * kSize; i += kChunk) {
            const int r = i / kSize;
            const float* q = a.q + (rows.token_of(r) * a.heads + rows.head_of(r)) * kSize;
            w.queries.floats[r][i % kSize] = r < rows.count() ? q[i % kSize] * a.scale : 0.0f;
        }
    }
    barrier();
}

// scores[row] of the key in a cell.
CHASKI_INLINE void score(const Attention& a, int64_t kv_head, int64_t cell, const Workspace& w,
                         float (&scores)[kRows]) {
    const StorageOf<kKeys> keys{a.keys};
    if constexpr (kIntegerKeys) {
        const auto* pairs = reinterpret_cast<const int32_t*>(keys.lane_of(kv_head, cell));
        const float scale = w.key_scales[threadIdx.x];
        int32_t sums[kRows] = {};
        constexpr int kAhead = kSize % 32 == 0 ? 16 : kSize % 16 == 0 ? 8 : 1;  // pairs
#pragma unroll 1
        for (int k = 0; k < kSize / 2; k += kAhead) {
            int32_t key[kAhead];
            for (int j = 0; j < kAhead; ++j) key[j] = pairs[(k + j) * kLanes];
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                for (int j = 0; j < kAhead; ++j) {
                    const int32_t q = reinterpret_cast<const int32_t*>(w.queries.integers[r])[k + j];
                    sums[r] += product_of_low(key[j], q) + product_of_high(key[j], q);
                }
            }
        }
        for (int r = 0; r < kRows; ++r) {
            scores[r] = static_cast<float>(sums[r]) * (scale * w.query_scales[r]);
        }
    } else if constexpr (kBlockKeys) {
        constexpr int kOffset = kKeys == DType::Q8_0 ? 128 : 8;
        for (float& s : scores) s = 0.0f;
        const auto* lines = reinterpret_cast<const uint32_t*>(keys.lane_of(kv_head, cell));
        for (int block = 0; block < kSize / 32; ++block, lines += kLanes * keys.kBlockBytes / 4) {
            const float scale = keys.block_scale(kv_head, cell, block);
            int32_t sums[kRows] = {};
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const uint32_t codes = kKeys == DType::Q8_0
                                           ? lines[i * kLanes]
                                           : lines[i % 4 * kLanes] >> i / 4 * 4 & 0x0f0f0f0fu;
                for (int r = 0; r < kRows; ++r) {
                    const int32_t q =
                        reinterpret_cast<const int32_t*>(w.queries.blocks.values[r])[8 * block + i];
                    sums[r] = device::dot4(sums[r], codes, q) - kOffset * device::dot4(0, 0x01010101u, q);
                }
            }
            for (int r = 0; r < kRows; ++r) {
                const float both = scale * w.queries.blocks.scales[r][block];
                scores[r] = device::fma(static_cast<float>(sums[r]), both, scores[r]);
            }
        }
    } else {
        for (float& s : scores) s = 0.0f;
        for (int k = 0; k < kSize; ++k) {
            const float key = load_element<kKeys>(keys.element(kv_head, cell, k));
            for (int r = 0; r < kRows; ++r) scores[r] = device::fma(w.queries.floats[r][k], key, scores[r]);
        }
    }
}

// Rows of digits in shared memory as an operand: 32 elements from `at` on.
template <int kStride>
CHASKI_INLINE void load_digits(const uint8_t (&rows)[kRows][kStride], int at, uint32_t (&a)[4]) {
    const int own = static_cast<int>(threadIdx.x) % 32;
    for (int i = 0; i < 4; ++i) {
        a[i] = *reinterpret_cast<const uint32_t*>(&rows[own / 4 + i % 2 * 8][at + own % 4 * 4 + i / 2 * 16]);
    }
}

// Sums of products of numbers of 16 bits, by their bytes: 65536 · high + 256 · middle + low.
struct Sums {
    int32_t high[4] = {}, middle[4] = {}, low[4] = {};

    // Of the digits of a, and of b, low bytes first.
    CHASKI_INLINE void add(const uint32_t (&a_low)[4], const uint32_t (&a_high)[4],
                           const uint32_t (&b_low)[2], const uint32_t (&b_high)[2]) {
        device::multiply_32_ss(high, a_high, b_high[0], b_high[1]);
        device::multiply_32_su(middle, a_high, b_low[0], b_low[1]);
        device::multiply_32_us(middle, a_low, b_high[0], b_high[1]);
        device::multiply_32_uu(low, a_low, b_low[0], b_low[1]);
    }
    CHASKI_INLINE int32_t operator[](int i) const {
        return static_cast<int32_t>((static_cast<uint32_t>(high[i]) << 16) +
                                    (static_cast<uint32_t>(middle[i]) << 8) + static_cast<uint32_t>(low[i]));
    }
};

// weights[row][entry] = the scores of the chunk's keys, of 32 entries by each warp.
CHASKI_INLINE void score_by_tensors(const Attention& a, int64_t kv_head, Workspace& w) {
    const StorageOf<kKeys> keys{a.keys};
    const int own = static_cast<int>(threadIdx.x) % 32, first = static_cast<int>(threadIdx.x) / 32 * 32;
    const int group = own / 4, quarter = own % 4;
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
        const int at = first + 8 * tile;
        const auto* pairs = reinterpret_cast<const uint32_t*>(keys.lane_of(kv_head, w.cells[at + group])) +
                            2 * quarter * kLanes;
        Sums sums;
#pragma unroll
        for (int k = 0; k < kSize; k += 32) {
            uint32_t low[2], high[2];
            for (int half = 0; half < 2; ++half) {
                const uint32_t x = pairs[(k / 2 + 8 * half) * kLanes],
                               y = pairs[(k / 2 + 8 * half + 1) * kLanes];
                low[half] = device::select_bytes(x, y, 0x6420);
                high[half] = device::select_bytes(x, y, 0x7531);
            }
            uint32_t a_low[4], a_high[4];
            load_digits(w.queries.digits[0], k, a_low);
            load_digits(w.queries.digits[1], k, a_high);
            sums.add(a_low, a_high, low, high);
        }
        for (int i = 0; i < 4; ++i) {
            const int row = group + i / 2 * 8, entry = at + 2 * quarter + i % 2;
            w.weights[row][entry] = static_cast<float>(sums[i]) * (w.key_scales[entry] * w.query_scales[row]);
        }
    }
}

// y[band][i]: what the chunk adds up to for row g, i below 4, or g + 8, and elements 4 t + i % 4 of each band
// of 16 elements that the warp has. Blocks without an entry in from..to - 1 add nothing.
CHASKI_INLINE void weigh_by_tensors(const Attention& a, int64_t kv_head, int from, int to, const Workspace& w,
                                    float (&y)[kBands][8]) {
    const StorageOf<kValues> values{a.values};
    const int own = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int group = own / 4, quarter = own % 4;
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
        const int first = 16 * (warp + kWarps * band);
        for (float& v : y[band]) v = 0.0f;
        if (first >= kValueSize) continue;
#pragma unroll 1
        for (int block = 0; block < kBlocks; ++block) {
            if ((block + 1) * kBlock <= from || block * kBlock >= to) continue;
            Sums even, odd;
#pragma unroll
            for (int k = block * kBlock; k < (block + 1) * kBlock; k += 32) {
                uint32_t low[2][2], high[2][2];  // of even and odd elements, of each half
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    uint32_t x[4];
                    for (int j = 0; j < 4; ++j) {
                        const int32_t cell = w.cells[k + 16 * half + 4 * quarter + j];
                        x[j] = *reinterpret_cast<const uint32_t*>(values.row(kv_head, cell) +
                                                                  2 * (first + 2 * group));
                    }
                    const uint32_t e0 = device::select_bytes(x[0], x[1], 0x5140);
                    const uint32_t e1 = device::select_bytes(x[2], x[3], 0x5140);
                    const uint32_t o0 = device::select_bytes(x[0], x[1], 0x7362);
                    const uint32_t o1 = device::select_bytes(x[2], x[3], 0x7362);
                    low[0][half] = device::select_bytes(e0, e1, 0x5410);
                    high[0][half] = device::select_bytes(e0, e1, 0x7632);
                    low[1][half] = device::select_bytes(o0, o1, 0x5410);
                    high[1][half] = device::select_bytes(o0, o1, 0x7632);
                }
                uint32_t a_low[4], a_high[4];
                load_digits(w.quantized.digits[0], k, a_low);
                load_digits(w.quantized.digits[1], k, a_high);
                even.add(a_low, a_high, low[0], high[0]);
                odd.add(a_low, a_high, low[1], high[1]);
            }
            for (int i = 0; i < 8; ++i) {
                const int32_t sum = i % 2 == 0 ? even[i / 4 * 2 + i % 4 / 2] : odd[i / 4 * 2 + i % 4 / 2];
                const float step = w.steps[group + i / 4 * 8][block];
                y[band][i] = device::fma(static_cast<float>(sum), step, y[band][i]);
            }
        }
    }
}

// The weights of a block times the scales of its values, in integers, by a group of 16 lanes.
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
    const float by_size = kWeightLimit / largest, by_sum = kWeightSum / sum_lanes({sum});
    const bool usable = is_usable(largest);
    const float factor = usable ? (by_size < by_sum ? by_size : by_sum) : 0.0f;
    for (int i = 0; i < kBlock / kLanes; ++i) {
        const int32_t value = usable ? device::round(u[i] * factor) : 0;
        const int place = at + i * kLanes + lane();
        if constexpr (kTensor) {
            w.quantized.digits[0][row][place] = static_cast<uint8_t>(value);
            w.quantized.digits[1][row][place] = static_cast<uint8_t>(value >> 8);
        } else {
            w.quantized.integers[row][place] = static_cast<int16_t>(value);
        }
    }
    if (lane() == 0) w.steps[row][at / kBlock] = usable ? 1.0f / factor : unusable_scale(largest);
}

// An element of a value that is no integer.
CHASKI_INLINE float value_of(const StorageOf<kValues>& values, int64_t kv_head, int64_t cell, int d) {
    if constexpr (StorageOf<kValues>::kInBlocks) {
        return values.decoded(kv_head, cell, d);
    } else {
        return load_element<kValues>(values.element(kv_head, cell, d));
    }
}

// products[block][row][i] = weights · values, or, of plain types, what the chunk adds up to in products[0].
// Entries from..to - 1 of the chunk are those that some row sees.
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
                    v[j] = is_seen
                               ? reinterpret_cast<const int32_t*>(values.row(kv_head, w.cells[i + j]))[pair]
                               : 0;
                }
#pragma unroll
                for (int r = 0; r < kRows; ++r) {
                    for (int j = 0; j < kAhead; j += 2) {
                        const int32_t u = *reinterpret_cast<const int32_t*>(&w.quantized.integers[r][i + j]);
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

// What the chunk adds up to for a row and an element.
CHASKI_INLINE float sum_of_chunk(int row, int d, const Workspace& w) {
    if constexpr (!kIntegerValues) return w.products[0][row][d];
    float y = 0.0f;
    for (int block = 0; block < kBlocks; ++block) {
        y = device::fma(w.products[block][row][d], w.steps[row][block], y);
    }
    return y;
}

// Scores, weights and sums of the chunk that starts with entry `start`.
CHASKI_INLINE void attend(const Attention& a, const Rows& rows, int32_t start, int32_t begin, int32_t end,
                          Workspace& w) {
    const auto own = static_cast<int>(threadIdx.x);
    const int from = begin > start ? begin - start : 0, to = end - start < kChunk ? end - start : kChunk;
    const bool is_seen = own >= from && own < to;
    const int64_t cell = is_seen ? a.cells[start + own] : 0;
    w.cells[own] = static_cast<int32_t>(cell);
    if constexpr (kIntegerKeys) w.key_scales[own] = StorageOf<kKeys>{a.keys}.scales(rows.kv_head)[cell];
    if constexpr (kIntegerValues) {
        w.value_scales[own] = is_seen ? StorageOf<kValues>{a.values}.scales(rows.kv_head)[cell] : 0.0f;
    }
    float scores[kRows];
    if constexpr (kTensor) {
        barrier();
        score_by_tensors(a, rows.kv_head, w);
        barrier();
        for (int r = 0; r < kRows; ++r) scores[r] = w.weights[r][own];
    } else if (is_seen) {
        score(a, rows.kv_head, cell, w, scores);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        float s = -infinity();
        if (is_seen && r < rows.count()) {
            const int32_t token = rows.token_of(r);
            const Span span(a.spans + 3 * token);
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
    if constexpr (!kTensor) {
        weigh_values(a, rows.kv_head, from, to, w);
        barrier();
    }
}

// The row and the element of y[band][i] of this thread (weigh_by_tensors).
CHASKI_INLINE int row_of(int i) { return static_cast<int>(threadIdx.x) % 32 / 4 + i / 4 * 8; }
CHASKI_INLINE int element_of(int band, int i) {
    return 16 * (static_cast<int>(threadIdx.x) / 32 + kWarps * band) + static_cast<int>(threadIdx.x) % 4 * 4 +
           i % 4;
}

// What the sums of one row are multiplied by in the end.
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

// What is known of a row.
struct Known {
    float maximum = -infinity();
    float total = 0.0f;
    float before = 1.0f;
    float added = 0.0f;

    // Takes the next chunk in, if the row sees any of it: sums are those before times `before` plus `added`.
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

#if CHASKI_SPLIT

// A block of threads for each task, key/value head, and tile of kRows query heads.
CHASKI_KERNEL(attention_chunk, Attention) {
    if (static_cast<int64_t>(blockIdx.x) >= *a.num_tasks) return;
    const int32_t token = a.tasks[2 * blockIdx.x], chunk = a.tasks[2 * blockIdx.x + 1];
    const Rows rows = rows_of(a, token, 1, blockIdx.y, static_cast<int>(blockIdx.z));
    const Span span(a.spans + 3 * token);
    auto& w = *reinterpret_cast<Workspace*>(device::shared());
    load_queries(a, rows, w);
    attend(a, rows, span.start() + chunk * kChunk, span.begin, span.end, w);
    constexpr int kPart = kValueSize + 2;
    float* parts = a.parts + (static_cast<int64_t>(blockIdx.x) * a.heads + rows.head) * kPart;
    if constexpr (kTensor) {
        const int32_t start = span.start() + chunk * kChunk;
        float y[kBands][8];
        weigh_by_tensors(a, rows.kv_head, span.begin - start, span.end - start, w, y);
        for (int band = 0; band < kBands; ++band) {
            for (int i = 0; i < 8; ++i) {
                if (element_of(band, i) < kValueSize && row_of(i) < rows.count()) {
                    parts[row_of(i) * kPart + element_of(band, i)] = y[band][i];
                }
            }
        }
    } else
        for (int i = static_cast<int>(threadIdx.x); i < rows.count() * kValueSize; i += kChunk) {
            parts[i / kValueSize * kPart + i % kValueSize] = sum_of_chunk(i / kValueSize, i % kValueSize, w);
        }
    if (static_cast<int>(threadIdx.x) < rows.count()) {
        float* own = parts + threadIdx.x * kPart + kValueSize;
        own[0] = w.maxima[threadIdx.x];
        own[1] = w.totals[threadIdx.x];
    }
}

// A block of threads for each token and some neighbouring heads (CHASKI_HEADS), whose elements are whole
// blocks of what products read. Shared memory: those elements, and the maximum and the total of each chunk
// and head.
CHASKI_KERNEL(attention_join, Attention) {
    constexpr int kHeads = CHASKI_HEADS, kPart = kValueSize + 2, kElements = kHeads * kValueSize;
    const int64_t token = blockIdx.x, head = blockIdx.y * static_cast<int64_t>(kHeads);
    if (token >= *a.n) return;
    const int first = a.starts[token], count = a.starts[token + 1] - first;
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const float* parts = a.parts + (first * a.heads + head) * kPart;
    const int64_t stride = a.heads * kPart;
    auto* row = reinterpret_cast<float*>(device::shared());
    float* levels = row + kElements;
    for (int i = thread; i < 2 * kHeads * count; i += threads) {
        const int own = i % (2 * kHeads);
        levels[i] = parts[i / (2 * kHeads) * stride + own / 2 * kPart + kValueSize + own % 2];
    }
    barrier();
    for (int i = thread; i < kElements; i += threads) {
        const int own = i / kValueSize;
        Known known;
        float sum = 0.0f;
#pragma unroll 8
        for (int j = 0; j < count; ++j) {
            const float part = parts[j * stride + own * kPart + i % kValueSize];
            const float* level = levels + 2 * (j * kHeads + own);
            if (known.join(level[0], level[1])) sum = device::fma(part, known.added, sum * known.before);
        }
        row[i] = sum * last_factor(a, head + own, known.maximum, known.total);
        a.y[(token * a.heads + head) * kValueSize + i] = row[i];
    }
    if (a.quantized.values == nullptr) return;
    barrier();
    float x[kEach] = {};
    const bool exists = thread * kEach < kElements;
    if (exists) load_each(row + thread * kEach, x);
    quantize(x, (token * a.heads + head) * kValueSize + thread * kEach, exists, a.quantized);
}

#else

// All chunks from `start` on, with sums in the registers of the threads that have found them.
CHASKI_INLINE void go_through_by_tensors(const Attention& a, const Rows& rows, int32_t start, int32_t begin,
                                         int32_t end, Workspace& w) {
    Known known[2];  // of the two rows of this thread
    float sums[kBands][8] = {};
    for (; start < end; start += kChunk) {
        attend(a, rows, start, begin, end, w);
        float y[kBands][8];
        weigh_by_tensors(a, rows.kv_head, begin - start, end - start, w, y);
        for (int half = 0; half < 2; ++half) {
            const int row = row_of(4 * half);
            if (!known[half].join(w.maxima[row], w.totals[row])) continue;
            for (int band = 0; band < kBands; ++band) {
                for (int i = 4 * half; i < 4 * half + 4; ++i) {
                    sums[band][i] =
                        device::fma(y[band][i], known[half].added, sums[band][i] * known[half].before);
                }
            }
        }
        barrier();
    }
    for (int half = 0; half < 2; ++half) {
        const int row = row_of(4 * half);
        if (row >= rows.count()) continue;
        const float factor = last_factor(a, rows.head_of(row), known[half].maximum, known[half].total);
        float* to = a.y + (rows.token_of(row) * a.heads + rows.head_of(row)) * kValueSize;
        for (int band = 0; band < kBands; ++band) {
            for (int i = 4 * half; i < 4 * half + 4; ++i) {
                if (element_of(band, i) < kValueSize) to[element_of(band, i)] = sums[band][i] * factor;
            }
        }
    }
}

// A block of threads for each tile of tokens, key/value head, and tile of kRows query heads.
CHASKI_KERNEL(attention, Attention) {
    if (static_cast<int64_t>(blockIdx.x) >= *a.num_tiles) return;
    const int32_t* tile = a.tiles + 2 * blockIdx.x;
    const Rows rows = rows_of(a, tile[0], tile[1], blockIdx.y, static_cast<int>(blockIdx.z));
    const Span first(a.spans + 3 * rows.token);
    int32_t begin = first.begin, end = first.end, start = first.start();
    for (int i = 1; i < rows.tokens; ++i) {
        const Span span(a.spans + 3 * (rows.token + i));
        begin = span.begin < begin ? span.begin : begin;
        end = span.end > end ? span.end : end;
        start = span.start() < start ? span.start() : start;
    }
    auto& w = *reinterpret_cast<Workspace*>(device::shared());
    load_queries(a, rows, w);
    if constexpr (kTensor) {
        go_through_by_tensors(a, rows, start, begin, end, w);
        return;
    }
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kValueSize; i += kChunk) {
        w.sums[i / kValueSize][i % kValueSize] = 0.0f;
    }
    Known known[kRows];  // the same in all threads
    for (; start < end; start += kChunk) {
        attend(a, rows, start, begin, end, w);
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
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        if (r >= rows.count()) continue;
        const float factor = last_factor(a, rows.head_of(r), known[r].maximum, known[r].total);
        float* y = a.y + (rows.token_of(r) * a.heads + rows.head_of(r)) * kValueSize;
        for (int d = static_cast<int>(threadIdx.x); d < kValueSize; d += kChunk) y[d] = w.sums[r][d] * factor;
    }
}

#endif

}  // namespace chaski::CHASKI_ISA
