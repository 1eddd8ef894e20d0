// Attention with integer keys and values, by the rule in integers.h. Tensor instructions multiply bytes, so
// each 16-bit number is split into two bytes.
//
// Keys and values are the rows of the left operand, and queries and weights are the columns of the right
// operand. So a key or a value is split once for up to kRows queries. Columns without a query do no harm,
// because no column affects another.
//
// The right operands are stored in shared memory in the form that is multiplied. Of 32 elements of a row,
// thread t of four has 16 bytes: the low and the high bytes of its 4 elements of the first 16, then those of
// its 4 elements of the last 16. The choice of these elements only has to be the same on both sides, because
// sums of integers do not depend on the order.
#include "attention.h"
#include "join.h"

namespace chaski::CHASKI_ISA {

static_assert(kBlocks == 4 && kKeys == DType::I16 && kValues == DType::I16);
static_assert(kSize % 32 == 0 && kValueSize % 16 == 0 && kRows % 8 == 0);
constexpr int kTiles = kRows / 8;                                       // of columns
constexpr int kSteps = kSize / 32;                                      // of a product with keys
constexpr int kBands = (kValueSize + 16 * kWarps - 1) / (16 * kWarps);  // of 16 elements, for each warp
// The number of steps, and of groups of 16 keys, that are in registers at a time. If these are all steps, the
// sums of all columns are not in registers. The next group is loaded meanwhile if there is room for it.
constexpr int kTogether = kSteps <= (CHASKI_SPLIT ? 8 : 4) ? kSteps : 4;
constexpr int kSixteens = kSteps <= 4 && CHASKI_SPLIT ? 2 : 1;
constexpr bool kAsksAhead = kSteps <= 4;
// Rows of shared memory are padded so that threads that read 16 bytes of neighbouring rows use all banks, and
// so do threads that write scores of every second row.
constexpr int kQueryBytes = 2 * kSize + (2 * kSize % 128 == 0 ? 64 : 0);
constexpr int kScores = kChunk + 16, kScoresOfPair = 2 * kScores + 8;
constexpr bool kStaged = CHASKI_STAGED;  // whether values are copied while scores are found
constexpr int kPieces = kValueSize / 8;  // of 16 bytes, of a value

// The state of a thread block, in shared memory.
struct Workspace {
    alignas(16) uint8_t queries[kRows][kQueryBytes];
    alignas(16) float scores[kRows / 2][kScoresOfPair];
    // Separate operands; without CHASKI_SPLIT they replace the scores.
    alignas(16) uint8_t weights[CHASKI_SPLIT ? kRows : 1][2 * kChunk + 64];
    alignas(16) uint8_t values[kStaged ? kChunk : 1][2 * kValueSize];
    alignas(8) float sums[CHASKI_SPLIT ? 1 : kRows][kValueSize + 4];  // of all chunks so far
    float query_scales[kRows];
    int32_t begins[kRows];  // entries that a row sees
    int32_t ends[kRows];
    int32_t shifts[kRows];  // entry + shift is how far the entry is from the row's token
    float steps[kRows][kBlocks];
    float highest[kRows][kBlocks];
    float maxima[kRows];  // of all chunks so far
    float totals[kRows];
    float before[kRows];  // factors of the sums before a chunk, or -1 if a row sees nothing of it
    float added[kRows];   // factors of the sums of the chunk
    float value_scales[kChunk];
    int32_t cells[kChunk];

    CHASKI_INLINE float* scores_of(int row) { return &scores[row / 2][row % 2 * kScores]; }
    CHASKI_INLINE uint8_t* weights_of(int row) {
        return CHASKI_SPLIT ? weights[row] : reinterpret_cast<uint8_t*>(scores_of(row));
    }
};
static_assert(sizeof(Workspace::weights[0]) % 128 == 64);

// The addresses of the keys and values of a head.
struct Head {
    const uint8_t* keys;  // panels
    const uint8_t* values;
    const float* key_scales;
    const float* value_scales;

    CHASKI_INLINE Head(const Attention& a, int64_t kv_head) {
        // Values that are known at compile time save instructions.
        const StorageOf<kKeys> of_keys{{a.keys.data, a.keys.cells, a.keys.heads, kSize, 1}};
        const StorageOf<kValues> of_values{{a.values.data, a.values.cells, a.values.heads, kValueSize, 0}};
        keys = of_keys.head(kv_head);
        values = of_values.head(kv_head);
        key_scales = of_keys.scales(kv_head);
        value_scales = of_values.scales(kv_head);
    }
    CHASKI_INLINE const uint32_t* key(int32_t cell) const {
        constexpr uint64_t kPanel = panel_bytes(kKeys, kSize);
        const auto number = static_cast<uint32_t>(cell);
        return reinterpret_cast<const uint32_t*>(keys + number / kLanes * kPanel) + number % kLanes;
    }
    // Moves from an element of the first cell's value to the same element of another cell's value.
    CHASKI_INLINE static const uint8_t* of_cell(const uint8_t* element, int32_t cell) {
        constexpr uint64_t kRow = row_bytes(kValues, kValueSize);
        return element + static_cast<uint32_t>(cell) * kRow;
    }
};

// The number of a thread in its warp, as `group` and `quarter`, and the number of its warp.
struct Own {
    int warp = static_cast<int>(threadIdx.x) / 32;
    int lane = static_cast<int>(threadIdx.x) % 32;
    int group = lane / 4;
    int quarter = lane % 4;
};

// The left operand: 32 elements of 16 rows.
struct Left {
    uint32_t low[4];
    uint32_t high[4];
};

// Sums of products of 16-bit numbers, by their bytes: 65536 · high + 256 · middle + low.
struct Sums {
    int32_t high[4] = {}, middle[4] = {}, low[4] = {};

    // `right`: the 16 bytes of this thread.
    CHASKI_INLINE void add(const Left& left, const uint8_t* right) {
        const int4 b = *reinterpret_cast<const int4*>(right);
        const auto low0 = static_cast<uint32_t>(b.x), high0 = static_cast<uint32_t>(b.y);
        const auto low1 = static_cast<uint32_t>(b.z), high1 = static_cast<uint32_t>(b.w);
        device::multiply_32_ss(high, left.high, high0, high1);
        device::multiply_32_su(middle, left.high, low0, low1);
        device::multiply_32_us(middle, left.low, high0, high1);
        device::multiply_32_uu(low, left.low, low0, low1);
    }
    CHASKI_INLINE int32_t operator[](int i) const {
        return static_cast<int32_t>((static_cast<uint32_t>(high[i]) << 16) +
                                    (static_cast<uint32_t>(middle[i]) << 8) + static_cast<uint32_t>(low[i]));
    }
};

template <class T>
CHASKI_INLINE T larger(T a, T b) {
    return a > b ? a : b;
}
template <class T>
CHASKI_INLINE T added(T a, T b) {
    return a + b;
}

// Calls a function for the rows of this warp, one for each of its groups of 16 lanes. The number of rows is
// even, so both groups have a row, but the last row may be unused.
template <class Each>
CHASKI_INLINE void for_rows(const Rows& rows, const Each& each) {
    for (int r = group(); r / 2 * 2 < rows.count(); r += num_groups()) each(r);
}

// The query of a row, which a group of 16 lanes holds.
struct Query {
    float x[kSize / kLanes];

    CHASKI_INLINE void load(const Attention& a, const Rows& rows, int r) {
        const int own = r < rows.count() ? r : 0;
        const float* q = a.q + (rows.token_of(own) * a.heads + rows.head_of(own)) * kSize;
#pragma unroll
        for (int i = 0; i < kSize / kLanes; ++i) x[i] = q[i * kLanes + lane()] * a.scale;
    }
    // Stores the query as an operand, and the entries that the row sees.
    CHASKI_INLINE void put(const Attention& a, const Rows& rows, int r, Workspace& w) const {
        const int32_t token = rows.token_of(r < rows.count() ? r : 0);
        const Span span(a.spans + 3 * token);
        float squares = 0.0f, scale;
        int32_t bits = 0;
#pragma unroll
        for (int i = 0; i < kSize / kLanes; ++i) {
            bits = larger(bits, magnitude_bits({x[i]}).v);
            squares = device::fma(x[i], x[i], squares);
        }
        const float amax = device::as_float(over_lanes(bits, larger<int32_t>));
        const float factor = factor_by(amax, over_lanes(squares, added<float>), false, &scale);
#pragma unroll
        for (int i = 0; i < kSize / kLanes; ++i) {
            const int32_t value = factor == 0.0f ? 0 : device::round(x[i] * factor);
            uint8_t* to = &w.queries[r][i / 2 * 64 + lane() / 4 * 16 + i % 2 * 8 + lane() % 4];
            to[0] = static_cast<uint8_t>(value);
            to[4] = static_cast<uint8_t>(value >> 8);
        }
        if (lane() != 0) return;
        w.query_scales[r] = scale;
        w.begins[r] = span.begin;
        w.ends[r] = span.end;
        w.shifts[r] = a.distances == nullptr ? 0 : span.first - span.begin - a.positions[token];
    }
};

// Keys of 16 cells for some steps, in the layout of storage: for cells g and g + 8, pairs 2 t and 2 t + 1 of
// each 16 elements.
struct Keys {
    uint32_t pairs[kTogether][2][2][2];  // [step][half][cell][pair]

    CHASKI_INLINE void load(const uint32_t* const (&lanes)[2], int step) {
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
            if (step + i >= kSteps) continue;
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const int half = j / 4, cell = j / 2 % 2, pair = j % 2;
                pairs[i][half][cell][pair] = lanes[cell][((step + i) * 16 + half * 8 + pair) * kLanes];
            }
        }
    }
    CHASKI_INLINE Left operand(int i) const {
        Left left;
        for (int j = 0; j < 4; ++j) {
            const auto& both = pairs[i][j / 2][j % 2];
            left.low[j] = device::select_bytes(both[0], both[1], 0x6420);
            left.high[j] = device::select_bytes(both[0], both[1], 0x7531);
        }
        return left;
    }
};

CHASKI_INLINE void put_scores(const Sums& sums, const float (&key_scales)[2], int tile, int at,
                              Workspace& w) {
    const Own own;
    for (int i = 0; i < 4; ++i) {
        const int row = 8 * tile + 2 * own.quarter + i % 2;
        const float scale = key_scales[i / 2] * w.query_scales[row];
        w.scores_of(row)[at + own.group + i / 2 * 8] = static_cast<float>(sums[i]) * scale;
    }
}

// The scores of all rows for 32 entries. A warp has requested their keys before.
struct Scores {
    const Head& head;
    int32_t cell;  // of this thread's entry
    Keys loaded[kSixteens];

    CHASKI_INLINE void ask(int sixteen, int step) {
        const Own own;
        const uint32_t* lanes[2];
        for (int i = 0; i < 2; ++i) {
            const int32_t of_row = device::value_of(cell, 16 * sixteen + own.group + 8 * i);
            lanes[i] = head.key(of_row) + 2 * own.quarter * kLanes;
        }
        loaded[sixteen % kSixteens].load(lanes, step);
    }
    CHASKI_INLINE void ask() {
#pragma unroll
        for (int i = 0; i < kSixteens; ++i) ask(i, 0);
    }
    CHASKI_INLINE void find(const Rows& rows, float key_scale, Workspace& w) {
        const Own own;
        const uint8_t* right = &w.queries[own.group][16 * own.quarter];
#pragma unroll 1
        for (int first = 0; first < 2; first += kSixteens) {
            float scales[kSixteens][2];
            for (int i = 0; i < 2 * kSixteens; ++i) {
                scales[i / 2][i % 2] = device::value_of(key_scale, 16 * first + 8 * i + own.group);
            }
            if (first > 0 && !kAsksAhead) ask(first, 0);
            if constexpr (kTogether == kSteps) {
                Left left[kSixteens][kSteps];
#pragma unroll
                for (int i = 0; i < kSixteens * kSteps; ++i) {
                    left[i / kSteps][i % kSteps] = loaded[i / kSteps].operand(i % kSteps);
                }
                if (kAsksAhead && first + kSixteens < 2) ask(first + kSixteens, 0);
#pragma unroll 1
                for (int tile = 0; 8 * tile < rows.count(); ++tile) {
                    Sums sums[kSixteens];
#pragma unroll
                    for (int i = 0; i < kSixteens * kSteps; ++i) {
                        const int step = i / kSixteens, sixteen = i % kSixteens;
                        sums[sixteen].add(left[sixteen][step], right + 8 * tile * kQueryBytes + 64 * step);
                    }
                    for (int i = 0; i < kSixteens; ++i) {
                        put_scores(sums[i], scales[i], tile, 32 * own.warp + 16 * (first + i), w);
                    }
                }
            } else {
                Sums sums[kTiles];
#pragma unroll 1
                for (int step = 0; step < kSteps; step += kTogether) {
                    if (step > 0) ask(first, step);
#pragma unroll
                    for (int i = 0; i < kTogether; ++i) {
                        if (step + i >= kSteps) continue;
                        const Left left = loaded[0].operand(i);
                        for (int tile = 0; tile < kTiles; ++tile) {
                            sums[tile].add(left, right + 8 * tile * kQueryBytes + 64 * (step + i));
                        }
                    }
                }
                for (int tile = 0; tile < kTiles; ++tile) {
                    put_scores(sums[tile], scales[0], tile, 32 * own.warp + 16 * first, w);
                }
            }
        }
    }
};

// The entries of a chunk that rows see; the chunk starts with `start`.
struct Part {
    int32_t start;
    int from;  // at least one row sees each of the entries from..to - 1 of the chunk
    int to;

    CHASKI_INLINE Part(int32_t start, int32_t begin, int32_t end)
        : start(start),
          from(begin > start ? begin - start : 0),
          to(end - start < kChunk ? end - start : kChunk) {}
    CHASKI_INLINE bool has(int first, int count) const { return first + count > from && first < to; }
};

constexpr int kOwn = kBlock / kLanes;  // entries of a block for each lane

// Computes the magnitudes and the sum of a block's weights times the scales of its values, for this lane.
CHASKI_INLINE void scale_weights(int block, const Workspace& w, float* weights, int32_t& bits, float& sum) {
    bits = 0;
    sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
        weights[i] = weights[i] * w.value_scales[block * kBlock + i * kLanes + lane()];
        bits = larger(bits, magnitude_bits({weights[i]}).v);
        sum = sum + weights[i];
    }
}

// The factor that multiplies a block's scaled weights, and the step of the resulting integers.
CHASKI_INLINE float factor_of_block(int32_t largest_bits, float sum, float* step) {
    const float largest = device::as_float(largest_bits);
    const float by_size = kWeightLimit / largest, by_sum = kWeightSum / sum;
    const bool usable = is_usable(largest);
    const float factor = usable ? (by_size < by_sum ? by_size : by_sum) : 0.0f;
    *step = usable ? 1.0f / factor : unusable_scale(largest);
    return factor;
}

// Stores weights as an operand: lane l has entries l, l + 16, l + 32 and l + 48. Unusable values, including
// NaNs, become 0.
CHASKI_INLINE void put_weights(const float* weights, float factor, int row, int block, Workspace& w) {
    uint32_t values[kOwn];
    for (int i = 0; i < kOwn; ++i) values[i] = static_cast<uint32_t>(device::round(weights[i] * factor));
    const uint32_t first = device::select_bytes(values[0], values[1], 0x5140);
    const uint32_t second = device::select_bytes(values[2], values[3], 0x5140);
    *reinterpret_cast<uint2*>(w.weights_of(row) + 2 * kBlock * block + 8 * lane()) = {
        device::select_bytes(first, second, 0x5410), device::select_bytes(first, second, 0x7632)};
}

// Reads the scores of some blocks of a row, every 16th for each lane. Returns the highest one in all lanes.
template <int kCount>
CHASKI_INLINE float read_scores(const Attention& a, const Rows& rows, const Part& part, int r, int block,
                                Workspace& w, float (&s)[kCount * kOwn]) {
    const int32_t entry = part.start + block * kBlock + lane();  // the first
    const int32_t from = w.begins[r] - entry;
    const auto seen = static_cast<uint32_t>(w.ends[r] - w.begins[r]);
    const float* scores = w.scores_of(r) + block * kBlock + lane();
    const auto is_seen = [&](int i) { return static_cast<uint32_t>(i * kLanes - from) < seen; };
#pragma unroll
    for (int i = 0; i < kCount * kOwn; ++i) s[i] = scores[i * kLanes];
    if (a.distances != nullptr) {
        const float* distances =
            a.distances + rows.head_of(r < rows.count() ? r : 0) * (2 * a.reach + 1) + a.reach;
#pragma unroll
        for (int i = 0; i < kCount * kOwn; ++i) {
            int64_t apart = entry + i * kLanes + w.shifts[r];
            apart = apart < -a.reach ? -a.reach : apart > a.reach ? a.reach : apart;
            if (is_seen(i)) s[i] = s[i] + distances[apart];
        }
    }
    if (a.cap > 0.0f) {
#pragma unroll
        for (int i = 0; i < kCount * kOwn; ++i) s[i] = bounded(splat(s[i]), a.cap).v;
    }
    float highest = -infinity();
#pragma unroll
    for (int i = 0; i < kCount * kOwn; ++i) {
        if (!is_seen(i)) s[i] = -infinity();
        highest = larger(highest, s[i]);
    }
    return over_lanes(highest, larger<float>);
}

// Computes the weights of a block from its scores and the row's highest score, which is -inf if the row sees
// none.
CHASKI_INLINE void find_weights(const float* scores, float highest, float* weights) {
    const float level = highest == -infinity() ? 0.0f : highest;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) weights[i] = exp(splat(scores[i] - level)).v;
}

#if CHASKI_SPLIT

// The highest score of a row in the blocks that at least one row sees.
CHASKI_INLINE float highest_of(const Part& part, int r, const Workspace& w) {
    float highest = -infinity();
    for (int block = 0; block < kBlocks; ++block) {
        if (part.has(block * kBlock, kBlock)) highest = larger(highest, w.highest[r][block]);
    }
    return highest;
}

// Turns scores into weights. A group of 16 lanes computes a block of a row, and a warp two neighbouring
// blocks.
CHASKI_INLINE void weigh_blocks(const Attention& a, const Rows& rows, const Part& part, Workspace& w) {
    const auto for_blocks = [&](const auto& each) {
        for (int item = group(); item < kBlocks * rows.count(); item += num_groups()) {
            const int block = item % kBlocks;
            if (part.has(block / 2 * 2 * kBlock, 2 * kBlock)) each(item / kBlocks, block);
        }
    };
    for_blocks([&](int r, int block) {
        float s[kOwn];
        const float highest = read_scores<1>(a, rows, part, r, block, w, s);
        float* scores = w.scores_of(r) + block * kBlock + lane();
        for (int i = 0; i < kOwn; ++i) scores[i * kLanes] = s[i];
        if (lane() == 0) w.highest[r][block] = highest;
    });
    barrier();
    for_blocks([&](int r, int block) {
        float* scores = w.scores_of(r) + block * kBlock + lane();
        float s[kOwn], weights[kOwn];
        for (int i = 0; i < kOwn; ++i) s[i] = scores[i * kLanes];
        find_weights(s, highest_of(part, r, w), weights);
        for (int i = 0; i < kOwn; ++i) scores[i * kLanes] = weights[i];
        int32_t bits;
        float sum, step;
        scale_weights(block, w, weights, bits, sum);
        bits = over_lanes(bits, larger<int32_t>);
        const float factor = factor_of_block(bits, over_lanes(sum, added<float>), &step);
        put_weights(weights, factor, r, block, w);
        if (lane() == 0) w.steps[r][block] = step;
    });
}

#else

// Combines each of four numbers over the lanes of a group with f, and returns the result of number lane / 4.
// The tree is that of over_lanes; lanes hand over the numbers that other lanes continue with.
template <class T, class F>
CHASKI_INLINE T for_four(const T (&v)[4], const F& f) {
    const bool is_late = (lane() & 8) != 0, is_odd = (lane() & 4) != 0;
    T two[2];
    for (int i = 0; i < 2; ++i) {
        two[i] = f(is_late ? v[i + 2] : v[i], device::from_thread(is_late ? v[i] : v[i + 2], 8));
    }
    T one = f(is_odd ? two[1] : two[0], device::from_thread(is_odd ? two[0] : two[1], 4));
    for (int apart = 2; apart > 0; apart /= 2) one = f(one, device::from_thread(one, apart));
    return one;
}

// Turns scores into weights and advances the state of all rows by a chunk, with a group of 16 lanes for each
// row.
CHASKI_INLINE void weigh_rows(const Attention& a, const Rows& rows, const Part& part, Workspace& w) {
    for_rows(rows, [&](int r) {
        float s[kBlocks * kOwn], total = 0.0f, sums[kBlocks], step;
        int32_t bits[kBlocks];
        const float highest = read_scores<kBlocks>(a, rows, part, r, 0, w, s);
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
            float* weights = s + block * kOwn;
            find_weights(weights, highest, weights);
            for (int i = 0; i < kOwn; ++i) total = total + weights[i];
            scale_weights(block, w, weights, bits[block], sums[block]);
        }
        total = over_lanes(total, added<float>);
        // Lanes 4 b to 4 b + 3 compute block b.
        const float factor =
            factor_of_block(for_four(bits, larger<int32_t>), for_four(sums, added<float>), &step);
        if (lane() % 4 == 0) w.steps[r][lane() / 4] = step;
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
            const float own = device::value_of(factor, static_cast<int>(threadIdx.x & 16) + 4 * block);
            put_weights(s + block * kOwn, own, r, block, w);
        }
        if (lane() != 0) return;
        Known known{w.maxima[r], w.totals[r]};
        const bool is_seen = known.join(highest, total);
        w.maxima[r] = known.maximum;
        w.totals[r] = known.total;
        w.before[r] = is_seen ? known.before : -1.0f;
        w.added[r] = known.added;
    });
}

#endif

// Values of 64 entries in the layout of storage. A thread has elements 2 g and 2 g + 1 of a band, and in each
// half of a step, thread t has the entries of one lane of `put_weights`.
struct Values {
    uint32_t pairs[2][2][4];  // [step][half][entry]

    // load(i): the two elements of entry i of the chunk or, if t is not 0, of the entry 2 t after it.
    template <class Load>
    CHASKI_INLINE void load(int block, const Load& load) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const int step = i / 8, half = i / 4 % 2, entry = i % 4;
            pairs[step][half][entry] = load(block * kBlock + 16 * entry + 8 * step + half);
        }
    }
    // Rows 0 to 7 of the operand are the even elements of the band.
    CHASKI_INLINE Left operand(int step) const {
        Left left;
        for (int half = 0; half < 2; ++half) {
            const auto& x = pairs[step][half];
            const uint32_t even0 = device::select_bytes(x[0], x[1], 0x5140);
            const uint32_t even1 = device::select_bytes(x[2], x[3], 0x5140);
            const uint32_t odd0 = device::select_bytes(x[0], x[1], 0x7362);
            const uint32_t odd1 = device::select_bytes(x[2], x[3], 0x7362);
            left.low[2 * half] = device::select_bytes(even0, even1, 0x5410);
            left.high[2 * half] = device::select_bytes(even0, even1, 0x7632);
            left.low[2 * half + 1] = device::select_bytes(odd0, odd1, 0x5410);
            left.high[2 * half + 1] = device::select_bytes(odd0, odd1, 0x7632);
        }
        return left;
    }
};

// y[tile][i]: the sum over the chunk for row 8 tile + 2 t + i % 2 and element 2 g + i / 2 of a band. The
// values of the first block that at least one row sees are loaded already.
template <class Load>
CHASKI_INLINE void add_up(const Rows& rows, const Part& part, const Load& load, Values& next, Workspace& w,
                          float (&y)[kTiles][4]) {
    const Own own;
    const uint8_t* right = w.weights_of(own.group) + 16 * own.quarter;
    const auto stride = static_cast<int>(w.weights_of(8) - w.weights_of(0));  // of tiles
    for (int i = 0; i < 4 * kTiles; ++i) y[i / 4][i % 4] = 0.0f;
    const int last = (part.to - 1) / kBlock;
#pragma unroll 1
    for (int block = part.from / kBlock; block <= last; ++block) {
        const Left left[2] = {next.operand(0), next.operand(1)};
        if (block < last) next.load(block + 1, load);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            if (8 * tile >= rows.count()) continue;
            Sums sums;
            for (int step = 0; step < 2; ++step) {
                sums.add(left[step], right + tile * stride + 2 * kBlock * block + 64 * step);
            }
            for (int i = 0; i < 4; ++i) {
                const float step = w.steps[8 * tile + 2 * own.quarter + i % 2][block];
                y[tile][i] = device::fma(static_cast<float>(sums[i]), step, y[tile][i]);
            }
        }
    }
}

// The first element of a warp's band, and the two elements of this thread.
CHASKI_INLINE int first_of(int band) { return 16 * (static_cast<int>(threadIdx.x) / 32 + kWarps * band); }
CHASKI_INLINE int pair_of(int band) { return first_of(band) + static_cast<int>(threadIdx.x) % 32 / 4 * 2; }

// The data that a warp needs of its 32 entries of a chunk; each thread has one entry.
struct Entry {
    int32_t cell = 0;
    float key_scale = 0.0f;
    float value_scale = 0.0f;

    CHASKI_INLINE Entry(const Attention& a, const Part& part) {
        const auto own = static_cast<int>(threadIdx.x);
        if (own >= part.from && own < part.to) cell = a.cells[part.start + own];
    }
    CHASKI_INLINE void load_scales(const Head& head, const Part& part) {
        const auto own = static_cast<int>(threadIdx.x);
        if (own < part.from || own >= part.to) return;
        key_scale = head.key_scales[cell];
        value_scale = head.value_scales[cell];
    }
};

#if CHASKI_SPLIT

// The place of a piece of an entry's value in shared memory, chosen so that threads use all banks.
CHASKI_INLINE uint32_t place_of_piece(uint32_t piece, uint32_t entry) {
    return kPieces % 8 == 0 ? piece ^ (entry & 6) : piece;
}

// There is a thread block for each task, key/value head, and tile of kRows query heads. The data of a chunk
// are requested as soon as its cells are known.
CHASKI_KERNEL(attention_chunk, Attention) {
    static_assert(kRows <= kChunk / kLanes);  // a group has one row at most
    const int32_t token = a.tasks[2 * blockIdx.x], chunk = a.tasks[2 * blockIdx.x + 1];
    const Span of_first(a.spans);  // requested before this block's task is known
    if (static_cast<int64_t>(blockIdx.x) >= *a.num_tasks) return;
    const Span span = token == 0 ? of_first : Span(a.spans + 3 * token);
    const Rows rows = rows_of(a, token, 1, blockIdx.y, static_cast<int>(blockIdx.z));
    const Part part(span.start() + chunk * kChunk, span.begin, span.end);
    const Own own;
    auto& w = *reinterpret_cast<Workspace*>(device::shared());
    const bool has_entries = part.has(32 * own.warp, 32);
    const Head head(a, rows.kv_head);
    Entry entry(a, part);
    Query query;
    for_rows(rows, [&](int r) { query.load(a, rows, r); });
    entry.load_scales(head, part);
    Scores scores{head, entry.cell};
    if (has_entries) {
        scores.ask();
        if constexpr (kStaged) {
#pragma unroll 4
            for (uint32_t i = 0; i < kPieces; ++i) {
                const uint32_t number = 32 * i + own.lane, piece = number % kPieces, row = number / kPieces;
                const int32_t cell = device::value_of(entry.cell, static_cast<int>(row));
                uint8_t* to = &w.values[32 * own.warp + row][16 * place_of_piece(piece, row)];
                device::copy_16(to, Head::of_cell(head.values + 16 * piece, cell));
            }
        }
    }
    device::end_copies();
    for_rows(rows, [&](int r) { query.put(a, rows, r, w); });
    w.value_scales[threadIdx.x] = entry.value_scale;
    if constexpr (!kStaged) w.cells[threadIdx.x] = entry.cell;
    barrier();
    if (has_entries) scores.find(rows, entry.key_scale, w);
    barrier();
    weigh_blocks(a, rows, part, w);
    device::wait_copies<0>();
    barrier();
    constexpr int kPart = kValueSize + 2;
    float* parts = a.parts + (static_cast<int64_t>(blockIdx.x) * a.heads + rows.head) * kPart;
#pragma unroll 1
    for (int band = 0; band < kBands; ++band) {
        if (first_of(band) >= kValueSize) break;
        const int element = pair_of(band), behind = 2 * own.quarter;
        const uint8_t* staged = &w.values[kStaged ? behind : 0][16 * place_of_piece(element / 8, behind)];
        const auto load = [&](int i) {
            const uint8_t* from = kStaged ? staged + i * 2 * kValueSize + element % 8 * 2
                                          : Head::of_cell(head.values + 2 * element, w.cells[i + behind]);
            return *reinterpret_cast<const uint32_t*>(from);
        };
        Values next;
        next.load(part.from / kBlock, load);
        float y[kTiles][4];
        add_up(rows, part, load, next, w, y);
        for (int i = 0; i < 2 * kTiles; ++i) {
            const int row = 8 * (i / 2) + 2 * own.quarter + i % 2;
            if (row >= rows.count()) continue;
            *reinterpret_cast<float2*>(parts + row * kPart + element) = {y[i / 2][i % 2],
                                                                         y[i / 2][i % 2 + 2]};
        }
    }
    for_rows(rows, [&](int r) {
        float total = 0.0f;
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
            if (!part.has(block * kBlock, kBlock)) continue;
            for (int i = 0; i < kOwn; ++i) {
                total = total + w.scores_of(r)[block * kBlock + i * kLanes + lane()];
            }
        }
        total = over_lanes(total, added<float>);
        if (lane() != 0 || r >= rows.count()) return;
        *reinterpret_cast<float2*>(parts + r * kPart + kValueSize) = {highest_of(part, r, w), total};
    });
    join_if_last(a, rows);
}

#else

// There is a thread block for each tile of tokens, key/value head, and tile of kRows query heads.
CHASKI_KERNEL(attention, Attention) {
    if (static_cast<int64_t>(blockIdx.x) >= *a.num_tiles) return;
    const int32_t* tile = a.tiles + 2 * blockIdx.x;
    const Rows rows = rows_of(a, tile[0], tile[1], blockIdx.y, static_cast<int>(blockIdx.z));
    const Sight sight = sight_of(a, rows);
    const Own own;
    const Head head(a, rows.kv_head);
    auto& w = *reinterpret_cast<Workspace*>(device::shared());
    for_rows(rows, [&](int r) {
        Query query;
        query.load(a, rows, r);
        query.put(a, rows, r, w);
        if (lane() != 0) return;
        w.maxima[r] = -infinity();
        w.totals[r] = 0.0f;
    });
    // Calls each(tile, i, row, sum) with the sums of two neighbouring elements, which only this thread
    // touches. Their places in y are i and i + 2.
    const auto for_sums = [&](int band, const auto& each) {
        if (first_of(band) >= kValueSize) return;
#pragma unroll
        for (int i = 0; i < 2 * kTiles; ++i) {
            const int row = 8 * (i / 2) + 2 * own.quarter + i % 2;
            if (row < rows.count())
                each(i / 2, i % 2, row, reinterpret_cast<float2&>(w.sums[row][pair_of(band)]));
        }
    };
    for (int band = 0; band < kBands; ++band) {
        for_sums(band, [](int, int, int, float2& sum) { sum = {0.0f, 0.0f}; });
    }
    for (int32_t start = sight.start; start < sight.end; start += kChunk) {
        const Part part(start, sight.begin, sight.end);
        Entry entry(a, part);
        entry.load_scales(head, part);
        Scores scores{head, entry.cell};
        const bool has_entries = part.has(32 * own.warp, 32);
        if (has_entries) scores.ask();
        w.value_scales[threadIdx.x] = entry.value_scale;
        w.cells[threadIdx.x] = entry.cell;
        barrier();
        if (has_entries) scores.find(rows, entry.key_scale, w);
        barrier();
        weigh_rows(a, rows, part, w);
        barrier();
#pragma unroll 1
        for (int band = 0; band < kBands; ++band) {
            if (first_of(band) >= kValueSize) break;
            const auto load = [&, element = head.values + 2 * pair_of(band)](int i) {
                const uint8_t* from = Head::of_cell(element, w.cells[i + 2 * own.quarter]);
                return *reinterpret_cast<const uint32_t*>(from);
            };
            Values next;
            next.load(part.from / kBlock, load);
            float y[kTiles][4];
            add_up(rows, part, load, next, w, y);
            for_sums(band, [&](int tile, int i, int row, float2& sum) {
                const float before = w.before[row], added = w.added[row];
                if (before < 0.0f) return;
                sum = {device::fma(y[tile][i], added, sum.x * before),
                       device::fma(y[tile][i + 2], added, sum.y * before)};
            });
        }
        barrier();
    }
    for (int band = 0; band < kBands; ++band) {
        for_sums(band, [&](int, int, int row, const float2& sum) {
            const float factor = last_factor(a, rows.head_of(row), w.maxima[row], w.totals[row]);
            float* to = a.y + (rows.token_of(row) * a.heads + rows.head_of(row)) * kValueSize;
            *reinterpret_cast<float2*>(to + pair_of(band)) = {sum.x * factor, sum.y * factor};
        });
    }
}

#endif

}  // namespace chaski::CHASKI_ISA
