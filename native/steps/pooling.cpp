#include "pooling.h"

#include <algorithm>
#include <cstring>

namespace chaski {

// The pools of some channels, which all have the same tokens.
struct PoolingStep::Pool {
    std::int64_t count;
    bool is_empty = true;
    float maxima[kPiece] = {}, sums[kPiece] = {}, totals[kPiece] = {};

    explicit Pool(std::int64_t count) : count(count) {}

    void load(const KVStorage& states, std::int32_t cell, std::int64_t channel) {
        is_empty = false;
        each([&](std::int64_t row, float* part) {
            std::memcpy(part, place(states, row, cell) + channel, count * sizeof(float));
        });
    }
    void store(const KVStorage& states, std::int32_t cell, std::int64_t channel) {
        each([&](std::int64_t row, float* part) {
            std::memcpy(place(states, row, cell) + channel, part, count * sizeof(float));
        });
    }

   private:
    static float* place(const KVStorage& states, std::int64_t row, std::int32_t cell) {
        return reinterpret_cast<float*>(states.row(row, cell));
    }
    template <class F>
    void each(F f) {
        f(0, maxima);
        f(1, sums);
        f(2, totals);
    }
};

void PoolingStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const {
    for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t channel = i % pieces_ * kPiece;
        const std::int64_t count = std::min(kPiece, job_.channels() - channel);
        pool(segments_[i / pieces_], channel, count);
        keep(segments_[i / pieces_], channel, count);
    }
}

void PoolingStep::pool(const ChunkSegment& segment, std::int64_t channel, std::int64_t count) const {
    Pool own(count), next(count), before(count);
    if (segment.since > 0 && (job_.overlaps || segment.since % job_.ratio != 0)) {
        (job_.overlaps ? before : own).load(job_.states, segment.source, channel);
    }
    for (std::int64_t at = segment.since; at < segment.end_position(); ++at) {
        if (at % job_.ratio == 0) {
            if (job_.overlaps && !next.is_empty) before = next;
            own.is_empty = next.is_empty = true;
        }
        if (segment.target > 0 && at == segment.last_chunk()) {
            (job_.overlaps ? before : own).store(job_.states, segment.target, channel);
        }
        add(segment, at, job_.overlaps ? 1 : 0, channel, own);
        if (job_.overlaps) add(segment, at, 0, channel, next);
        if (at >= segment.position) {
            write(before, own, job_.y + segment.token(at) * job_.channels() + channel);
        }
    }
}

void PoolingStep::add(const ChunkSegment& segment, std::int64_t at, std::int64_t input, std::int64_t channel,
                      Pool& pool) const {
    const std::int64_t width = job_.width(), first = input * job_.channels() + channel;
    const bool is_new = at >= segment.position;
    const auto* row = reinterpret_cast<const float*>(job_.rows.row(at % kDeltaRing, segment.cell));
    const float* c = first + (is_new ? job_.values + segment.token(at) * width : row);
    const float* z = first + (is_new ? job_.scores + segment.token(at) * width : row + width);
    const float* bias = bias_.data() + at % job_.ratio * width + first;
    float differences[2 * kPiece], powers[2 * kPiece];
    float *kept = powers, *added = powers + pool.count;
    for (std::int64_t i = 0; i < pool.count; ++i) {
        const float score = z[i] + bias[i];
        const float highest = pool.is_empty ? score : std::max(pool.maxima[i], score);
        differences[i] = pool.is_empty ? 0.0f : pool.maxima[i] - highest;
        differences[pool.count + i] = score - highest;
        pool.maxima[i] = highest;
    }
    ops_.exponentials(differences, 0.0f, 2 * pool.count, powers);
    for (std::int64_t i = 0; i < pool.count; ++i) {
        pool.sums[i] = pool.is_empty ? 1.0f : pool.sums[i] * kept[i] + added[i];
        pool.totals[i] = pool.is_empty ? c[i] : pool.totals[i] * kept[i] + added[i] * c[i];
    }
    pool.is_empty = false;
}

void PoolingStep::write(const Pool& before, const Pool& own, float* y) const {
    if (before.is_empty) {
        for (std::int64_t i = 0; i < own.count; ++i) y[i] = own.totals[i] / own.sums[i];
        return;
    }
    float differences[2 * kPiece], powers[2 * kPiece];
    const float *f = powers, *g = powers + own.count;
    for (std::int64_t i = 0; i < own.count; ++i) {
        const float highest = std::max(before.maxima[i], own.maxima[i]);
        differences[i] = before.maxima[i] - highest;
        differences[own.count + i] = own.maxima[i] - highest;
    }
    ops_.exponentials(differences, 0.0f, 2 * own.count, powers);
    for (std::int64_t i = 0; i < own.count; ++i) {
        y[i] =
            (before.totals[i] * f[i] + own.totals[i] * g[i]) / (before.sums[i] * f[i] + own.sums[i] * g[i]);
    }
}

void PoolingStep::keep(const ChunkSegment& segment, std::int64_t channel, std::int64_t count) const {
    const std::int64_t end = segment.end_position(), width = job_.width();
    for (std::int64_t at = std::max<std::int64_t>(segment.position, end - kDeltaRing); at < end; ++at) {
        auto* row = reinterpret_cast<float*>(job_.rows.row(at % kDeltaRing, segment.cell));
        for (std::int64_t first = channel; first < width; first += job_.channels()) {
            const std::int64_t from = segment.token(at) * width + first;
            std::memcpy(row + first, job_.values + from, count * sizeof(float));
            std::memcpy(row + width + first, job_.scores + from, count * sizeof(float));
        }
    }
}

}  // namespace chaski
