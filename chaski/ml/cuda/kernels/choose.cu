// The choice of the cells that attention reads, by the scores of an indexer: the rules are in ops.h (Indexer)
// and steps/choose.h. Compiled for the type and the size of keys, and a number of query heads at a time.
//
// A thread block takes token after token. Its threads score the keys of a token's blocks, one each, and find
// the lowest chosen score digit by digit, from the highest one down. Then they write the chosen cells in
// order.
#include "scores.h"

namespace chaski::CHASKI_ISA {

struct Choice {
    const float* q;        // [token][head][size]
    const float* weights;  // [token][head], or null for ones
    Count n;
    Storage keys;
    const int32_t* cells;
    const int32_t* spans;
    int64_t heads;
    float scale;
    int64_t count;  // of blocks
    int64_t block;  // positions of a block
    int64_t local;  // blocks that are chosen first; then a block has the highest score of its positions
    float* scores;  // [thread block][longest]: of positions or blocks, and then those of blocks
    int64_t longest;
    int32_t* chosen;  // [token][count · block + block - 1]
};

constexpr int kDigits = 256;

struct Workspace : Queries {
    int32_t digits[kDigits];    // how many scores have each digit
    int32_t before[kWarps][2];  // how many entries of earlier warps are above, and equal
    uint32_t lowest;
    int32_t equal;  // how many scores that equal the lowest are chosen
};

// The order of floats as an order of integers; zeros of both signs are equal.
CHASKI_INLINE uint32_t rank_of(float score) {
    const auto bits = static_cast<uint32_t>(device::as_int(score == 0.0f ? 0.0f : score));
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// Scores of `count` keys of a token, which are `apart` cells from each other. A thread computes every 256th.
CHASKI_INLINE void score_keys(const Choice& a, int32_t token, const int32_t* cells, int64_t count,
                              int64_t apart, float* scores, Workspace& w) {
    const float least = a.local > 0 ? -infinity() : 0.0f;
    Attention job{};
    job.q = a.q;
    job.keys = a.keys;
    job.heads = a.heads;
    job.scale = a.scale;
    for (int tile = 0; tile * kRows < a.heads; ++tile) {
        const Rows rows = rows_of(job, token, 1, 0, tile);
        barrier();
        load_queries(job, rows, w);
        for (int64_t i = threadIdx.x; i < count; i += kChunk) {
            const int32_t cell = cells[i * apart + apart - 1];
            if constexpr (kIntegerKeys) w.key_scales[threadIdx.x] = StorageOf<kKeys>{a.keys}.scales(0)[cell];
            float products[kRows];
            score(job, 0, cell, w, products);
            float sum = tile == 0 ? 0.0f : scores[i];
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                if (r >= rows.count()) continue;
                const float weight = a.weights == nullptr ? 1.0f : a.weights[token * a.heads + rows.head + r];
                sum = device::fma(weight, max(splat(products[r]), splat(least)).v, sum);
            }
            scores[i] = sum != sum && (tile + 1) * kRows >= a.heads ? -infinity() : sum;
        }
    }
    barrier();
}

// The scores of `count` blocks from those of `seen` positions.
CHASKI_INLINE void pool(const Choice& a, const float* scores, int64_t seen, int64_t count, float* pooled) {
    for (int64_t i = threadIdx.x; i < count; i += kChunk) {
        float highest = scores[i * a.block];
        for (int64_t at = i * a.block + 1; at < (i + 1) * a.block && at < seen; ++at) {
            highest = scores[at] > highest ? scores[at] : highest;
        }
        pooled[i] = i + a.local < count ? highest : infinity();
    }
    barrier();
}

// Finds the rank of the `wanted`-th largest score, and how many of its equals belong to the largest ones.
CHASKI_INLINE void find_lowest(const float* scores, int64_t count, int64_t wanted, Workspace& w) {
    const auto own = static_cast<int>(threadIdx.x);
    uint32_t known = 0;
    auto left = static_cast<int32_t>(wanted);
    for (int shift = 24; shift >= 0; shift -= 8) {
        w.digits[own] = 0;
        barrier();
        for (int64_t i = own; i < count; i += kChunk) {
            const uint32_t rank = rank_of(scores[i]);
            if (shift == 24 || rank >> (shift + 8) == known) {
                device::add_shared(w.digits + (rank >> shift & 255), 1);
            }
        }
        barrier();
        if (own == 0) {
            int32_t above = 0, digit = kDigits - 1;
            while (above + w.digits[digit] < left) above += w.digits[digit--];
            w.lowest = known << 8 | static_cast<uint32_t>(digit);
            w.equal = left - above;
        }
        barrier();
        known = w.lowest;
        left = w.equal;
    }
}

// Writes the cells of the chosen blocks in order. The last one may be cut by the number of `seen` cells.
CHASKI_INLINE void write_chosen(const Choice& a, const int32_t* cells, int64_t seen, int64_t count,
                                const float* scores, int32_t* to, Workspace& w) {
    const auto own = static_cast<int>(threadIdx.x);
    const uint32_t lowest = w.lowest, below = (1u << own % 32) - 1;
    int32_t equal = w.equal;
    for (int64_t first = 0; first < count; first += kChunk) {
        const int64_t i = first + own;
        const uint32_t rank = i < count ? rank_of(scores[i]) : 0;
        const bool is_above = i < count && rank > lowest, is_equal = i < count && rank == lowest;
        const uint32_t above = device::votes(is_above), equals = device::votes(is_equal);
        barrier();
        if (own % 32 == 0) {
            w.before[own / 32][0] = device::count_bits(above);
            w.before[own / 32][1] = device::count_bits(equals);
        }
        barrier();
        int32_t above_before = device::count_bits(above & below),
                equal_before = device::count_bits(equals & below);
        int32_t all_above = 0, all_equal = 0;
        for (int warp = 0; warp < kWarps; ++warp) {
            if (warp < own / 32) {
                above_before += w.before[warp][0];
                equal_before += w.before[warp][1];
            }
            all_above += w.before[warp][0];
            all_equal += w.before[warp][1];
        }
        if (is_above || (is_equal && equal_before < equal)) {
            const int32_t place = above_before + (equal_before < equal ? equal_before : equal);
            for (int64_t j = 0; j < a.block && i * a.block + j < seen; ++j) {
                to[place * a.block + j] = cells[i * a.block + j];
            }
        }
        const int32_t taken = all_equal < equal ? all_equal : equal;
        equal -= taken;
        to += (all_above + taken) * a.block;
    }
}

CHASKI_KERNEL(choose_cells, Choice) {
    auto& w = *reinterpret_cast<Workspace*>(device::shared());
    float* scores = a.scores + blockIdx.x * a.longest;
    const int64_t width = a.count * a.block + (a.local > 0 ? 0 : a.block - 1);
    for (int64_t token = blockIdx.x; token < *a.n; token += gridDim.x) {
        const Span span(a.spans + 3 * token);
        const int64_t seen = span.end - span.begin;
        const int64_t blocks = a.local > 0 ? (seen + a.block - 1) / a.block : seen / a.block;
        const int32_t* cells = a.cells + span.begin;
        int32_t* to = a.chosen + token * width;
        int64_t done = 0, chosen = 0;  // cells that are considered, and those that are written
        if (blocks > a.count) {
            const int64_t apart = a.local > 0 ? 1 : a.block, keys = seen / apart;
            score_keys(a, static_cast<int32_t>(token), cells, keys, apart, scores, w);
            float* of_blocks = a.local > 0 ? scores + keys : scores;
            if (a.local > 0) pool(a, scores, seen, blocks, of_blocks);
            find_lowest(of_blocks, blocks, a.count, w);
            write_chosen(a, cells, seen, blocks, of_blocks, to, w);
            done = blocks * a.block < seen ? blocks * a.block : seen;
            chosen = done - (blocks - a.count) * a.block;
        }
        for (int64_t i = chosen + threadIdx.x; i < width; i += kChunk) {
            const int64_t at = done + i - chosen;
            to[i] = at < seen ? cells[at] : 0;
        }
        barrier();
    }
}

}  // namespace chaski::CHASKI_ISA
