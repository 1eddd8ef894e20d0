// Layers that store a state for each sequence: short convolutions, and the gated delta net and Mamba 2, whose
// rules of order are in native/include/gated_delta.h.
#include "segments.h"

namespace chaski::CHASKI_ISA {

constexpr int kColumns = 64;  // of a thread block, one for each thread
constexpr int kTile = 8;      // tokens whose sums a thread has at a time

struct ShortConv {
    const float* x;
    Count n;
    const Segment* segments;
    Count num_segments;
    const float* filter;  // [tap][channel]
    Storage states;       // a head for each tap but the last
    float* y;
};

CHASKI_INLINE float input(const ShortConv& a, const Segment& segment, int64_t t, int64_t channel) {
    if (t >= segment.first) return a.x[t * a.states.size + channel];
    return row_of(a.states, t - segment.first + a.states.heads, segment.source)[channel];
}

// A thread for each channel of each token.
CHASKI_KERNEL(short_conv, ShortConv) {
    const int64_t i = thread(), token = i / a.states.size, channel = i % a.states.size;
    if (token >= *a.n) return;
    const Segment& segment = segment_of(a.segments, token);
    float sum = a.filter[channel] * input(a, segment, token - a.states.heads, channel);
    for (int64_t j = 1; j <= a.states.heads; ++j) {
        sum += a.filter[j * a.states.size + channel] * input(a, segment, token - a.states.heads + j, channel);
    }
    a.y[i] = sum;
}

// A thread for each channel of each segment.
CHASKI_KERNEL(keep_inputs, ShortConv) {
    const int64_t i = thread(), number = i / a.states.size, channel = i % a.states.size;
    if (number >= *a.num_segments) return;
    const Segment& segment = a.segments[number];
    for (int64_t j = 0; j < a.states.heads; ++j) {
        row_of(a.states, j, segment.target)[channel] =
            input(a, segment, segment.end - a.states.heads + j, channel);
    }
}

struct ChunkedConv {
    const float* x;
    Count n;
    const ChunkSegment* segments;
    Count num_segments;
    const float* filter;  // [tap][channel]
    Storage states;       // a head for each tap but the last
    Storage rows;         // a head for each place of the ring
    float* y;
};

CHASKI_INLINE float input(const ChunkedConv& a, const ChunkSegment& segment, int at, int64_t channel) {
    if (at >= segment.position) return a.x[segment.token(at) * a.states.size + channel];
    const int before = at - segment.since;
    return before < 0 ? row_of(a.states, before + a.states.heads, segment.source)[channel]
                      : row_of(a.rows, at % kRing, segment.cell)[channel];
}

// A thread for each channel of each token.
CHASKI_KERNEL(chunked_conv, ChunkedConv) {
    const int64_t i = thread(), token = i / a.states.size, channel = i % a.states.size;
    if (token >= *a.n) return;
    const ChunkSegment& segment = segment_of(a.segments, token);
    const auto before = static_cast<int>(a.states.heads);
    const int at = segment.position + static_cast<int>(token - segment.begin) - before;
    float sum = a.filter[channel] * input(a, segment, at, channel);
    for (int j = 1; j <= before; ++j) {
        sum += a.filter[j * a.states.size + channel] * input(a, segment, at + j, channel);
    }
    a.y[i] = sum;
}

// A thread for each channel of each segment.
CHASKI_KERNEL(keep_chunked_inputs, ChunkedConv) {
    const int64_t i = thread(), number = i / a.states.size, channel = i % a.states.size;
    if (number >= *a.num_segments) return;
    const ChunkSegment& segment = a.segments[number];
    const int end = segment.end_position(), before = static_cast<int>(a.states.heads);
    for (int j = 0; j < before && segment.target > 0; ++j) {
        row_of(a.states, j, segment.target)[channel] =
            input(a, segment, segment.last_chunk() - before + j, channel);
    }
    const int begin = end - kRing > segment.position ? end - kRing : segment.position;
    for (int at = begin; at < end; ++at) {
        row_of(a.rows, at % kRing, segment.cell)[channel] = input(a, segment, at, channel);
    }
}

struct GatedDelta {
    const float* q;  // [token][key head][key size]
    const float* k;
    const float* v;          // [token][head][value size]
    const float* log_decay;  // [token][head]
    const float* beta;
    const ChunkSegment* segments;
    Count num_segments;
    Storage states;      // [head] [key size][columns]
    Storage keys;        // [key head] [ring panel][key size][16]: lanes are tokens
    Storage values;      // [head] [ring][columns]: pseudo values
    Storage log_decays;  // [head] [ring]
    int64_t value_size;
    int64_t is_tiled;
    const float* skip;  // [head]: D of Mamba 2
    float* y;           // [token][head][value size]

    CHASKI_INLINE int64_t heads() const { return log_decays.heads; }
    CHASKI_INLINE int64_t key_size() const { return keys.size / kRing; }
    CHASKI_INLINE int64_t columns() const { return values.size / kRing; }
    CHASKI_INLINE int64_t key_head(int64_t head) const {
        return is_tiled ? head % keys.heads : head / (heads() / keys.heads);
    }
    // The offset of the key of position `at` in its ring.
    CHASKI_INLINE int64_t key_place(int at) const {
        return at % kRing / kLanes * key_size() * kLanes + at % kLanes;
    }
};

// The shared memory of a thread block for one chunk. The keys, whose size is known at launch, follow it.
struct Slab {
    float corrections[kChunk][kChunk];  // k_i k_j, then -(d_ij (k_i k_j))
    float answers[kChunk][kChunk];      // q_i k_j, then d_ij (q_i k_j)
    float log_decays[kChunk];
    float decays[kChunk];       // e_i
    float last_decays[kChunk];  // d_lj
    float values[kChunk][kColumns];
};

// The part of one chunk that a segment covers, for a head and some columns: the tokens `first` to `last` - 1
// of the chunk. It is empty if a full chunk was open. Without kCorrects, which is Mamba 2, pseudo values need
// no keys.
template <bool kCorrects>
struct Chunk {
    const GatedDelta& a;
    const ChunkSegment& segment;
    Slab& slab;
    float* keys;  // [token][key size + 1]
    int64_t head;
    int64_t column;  // of this thread
    int begin;       // position of the chunk
    int first;
    int last;
    bool is_first;
    bool is_passed;  // a token comes after it

    CHASKI_INLINE Chunk(const GatedDelta& job, const ChunkSegment& of, int at)
        : a(job),
          segment(of),
          slab(*reinterpret_cast<Slab*>(device::shared())),
          keys(reinterpret_cast<float*>(device::shared() + sizeof(Slab))),
          head(blockIdx.y),
          column(static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x),
          begin(at),
          first(at == of.since ? of.position - at : 0),
          last(of.end_position() - at < kChunk ? of.end_position() - at : kChunk),
          is_first(at == of.since),
          is_passed(of.end_position() > at + kChunk) {}

    CHASKI_INLINE bool is_new(int i) const { return begin + i >= segment.position; }
    CHASKI_INLINE const float* new_row(const float* x, int i) const {
        return x + (segment.token(begin + i) * a.keys.heads + a.key_head(head)) * a.key_size();
    }
    CHASKI_INLINE const float* key(int i) const { return keys + i * (a.key_size() + 1); }

    CHASKI_INLINE void fetch() {
        const auto size = static_cast<int>(a.key_size());
        const float* kept = row_of(a.keys, a.key_head(head), segment.cell);
        for (int i = static_cast<int>(threadIdx.x); i < last * size; i += kColumns) {
            const int token = i / size, at = i % size;
            keys[token * (size + 1) + at] =
                is_new(token) ? new_row(a.k, token)[at] : kept[a.key_place(begin + token) + at * kLanes];
        }
        for (int i = static_cast<int>(threadIdx.x); i < last; i += kColumns) {
            slab.log_decays[i] = is_new(i) ? a.log_decay[segment.token(begin + i) * a.heads() + head]
                                           : row_of(a.log_decays, head, segment.cell)[(begin + i) % kRing];
        }
        for (int i = 0; i < first; ++i)
            slab.values[i][threadIdx.x] = column < a.columns() ? kept_value(i) : 0.0f;
    }
    CHASKI_INLINE float& kept_value(int i) const {
        return row_of(a.values, head, segment.cell)[(begin + i) % kRing * a.columns() + column];
    }

    // Products of new keys and queries with all keys up to them.
    CHASKI_INLINE void multiply_keys() {
        for (int task = static_cast<int>(threadIdx.x); task < (last - first) * kChunk; task += kColumns) {
            const int i = first + task / kChunk, j = task % kChunk;
            if (j > i) continue;
            const float *q = new_row(a.q, i), *own = key(i), *other = key(j);
            float by_key = 0.0f, by_query = 0.0f;
#pragma unroll 4
            for (int64_t at = 0; at < a.key_size(); ++at) {
                if constexpr (kCorrects) by_key = device::fma(other[at], own[at], by_key);
                by_query = device::fma(other[at], q[at], by_query);
            }
            if constexpr (kCorrects) slab.corrections[i][j] = by_key;
            slab.answers[i][j] = by_query;
        }
    }

    // All decays, and the products times them. Thread j computes the decays since token j.
    CHASKI_INLINE void multiply_decays() {
        const int j = static_cast<int>(threadIdx.x);
        if (j >= kChunk) return;
        float since = 0.0f, sum = 0.0f;
        for (int i = 0; i < last; ++i) {
            const float g = slab.log_decays[i];
            if (i <= j) sum += g;
            if (i > j) since += g;
            if (i < first || j > i) continue;
            const float d = exp(F32x16{since}).v;
            if constexpr (kCorrects) slab.corrections[i][j] = -(d * slab.corrections[i][j]);
            slab.answers[i][j] = d * slab.answers[i][j];
        }
        slab.decays[j] = exp(F32x16{sum}).v;
        slab.last_decays[j] = exp(F32x16{since}).v;
    }

    CHASKI_INLINE const float* state() const {
        return row_of(a.states, head, is_first ? segment.source : segment.target) + column;
    }

    // Pseudo values and results of up to kCount tokens from i on.
    template <int kCount>
    CHASKI_INLINE void advance(int i) {
        const float *k[kCount], *q[kCount], *s = state();
        float correction[kCount], answer[kCount];
#pragma unroll
        for (int t = 0; t < kCount; ++t) {
            const int token = i + t < last ? i + t : last - 1;
            k[t] = key(token);
            q[t] = new_row(a.q, token);
            correction[t] = answer[t] = 0.0f;
        }
#pragma unroll 8
        for (int64_t at = 0; at < a.key_size(); ++at) {
            const float own = s[at * a.columns()];
#pragma unroll
            for (int t = 0; t < kCount; ++t) {
                if constexpr (kCorrects) correction[t] = device::fma(own, k[t][at], correction[t]);
                answer[t] = device::fma(own, q[t][at], answer[t]);
            }
        }
#pragma unroll
        for (int t = 0; t < kCount; ++t) {
            const int own = i + t;
            if (own >= last) return;
            const int64_t place = segment.token(begin + own) * a.heads() + head;
            const bool is_value = column < a.value_size;
            const float decay = slab.decays[own];
            const float v = is_value ? a.v[place * a.value_size + column] : 0.0f;
            float u = v;
            if constexpr (kCorrects) {
                u = device::fma(-decay, correction[t], v);
                for (int j = 0; j < own; ++j) {
                    u = device::fma(slab.values[j][threadIdx.x], slab.corrections[own][j], u);
                }
            }
            u = a.beta[place] * u;
            slab.values[own][threadIdx.x] = u;
            kept_value(own) = u;
            float y = decay * answer[t];
            for (int j = 0; j <= own; ++j) {
                y = device::fma(slab.values[j][threadIdx.x], slab.answers[own][j], y);
            }
            if constexpr (!kCorrects) y = device::fma(a.skip[head], v, y);
            if (is_value) a.y[place * a.value_size + column] = y;
        }
    }

    // The state at the chunk's end.
    CHASKI_INLINE void update_state() {
        for (int j = 0; j < kChunk; ++j) {
            slab.values[j][threadIdx.x] = slab.last_decays[j] * slab.values[j][threadIdx.x];
        }
        const float decay = slab.decays[kChunk - 1], *from = state();
        float* to = row_of(a.states, head, segment.target) + column;
        for (int64_t at = 0; at < a.key_size(); ++at) {
            float sum = decay * from[at * a.columns()];
#pragma unroll 8
            for (int j = 0; j < kChunk; ++j) sum = device::fma(slab.values[j][threadIdx.x], key(j)[at], sum);
            to[at * a.columns()] = sum;
        }
    }

    CHASKI_INLINE void run() {
        fetch();
        barrier();
        multiply_keys();
        barrier();
        multiply_decays();
        barrier();
        if (column < a.columns()) {
            int i = first;
            if (last - i == 1) {
                advance<1>(i);
            } else {
                for (; i < last; i += kTile) advance<kTile>(i);
            }
            if (is_passed) update_state();
        }
        barrier();
    }
};

// There is a thread block for each kColumns columns of a head, for each head, and for each segment.
template <bool kCorrects>
CHASKI_INLINE void run_chunks(const GatedDelta& a) {
    if (blockIdx.z >= *a.num_segments) return;
    const ChunkSegment& segment = a.segments[blockIdx.z];
    for (int at = segment.since; at < segment.end_position(); at += kChunk) {
        Chunk<kCorrects>(a, segment, at).run();
    }
}
CHASKI_KERNEL(gated_delta, GatedDelta) { run_chunks<true>(a); }
CHASKI_KERNEL(ssd, GatedDelta) { run_chunks<false>(a); }

// Stores the keys and log decays of the last two chunks, after the last read of the rows that they replace.
// There is a thread block for each head and each segment.
CHASKI_KERNEL(keep_delta_rows, GatedDelta) {
    if (blockIdx.z >= *a.num_segments) return;
    const ChunkSegment& segment = a.segments[blockIdx.z];
    const int64_t head = blockIdx.y;
    const int before = segment.last_chunk() - kChunk;
    const int begin = before > segment.position ? before : segment.position;
    const auto size = static_cast<int>(a.key_size());
    float* decays = row_of(a.log_decays, head, segment.cell);
    for (int i = static_cast<int>(threadIdx.x); begin + i < segment.end_position();
         i += static_cast<int>(blockDim.x)) {
        decays[(begin + i) % kRing] = a.log_decay[segment.token(begin + i) * a.heads() + head];
    }
    if (head >= a.keys.heads) return;
    float* keys = row_of(a.keys, head, segment.cell);
    for (int i = static_cast<int>(threadIdx.x); begin + i / size < segment.end_position();
         i += static_cast<int>(blockDim.x)) {
        const int at = begin + i / size;
        keys[a.key_place(at) + i % size * kLanes] =
            a.k[(segment.token(at) * a.keys.heads + head) * a.key_size() + i % size];
    }
}

}  // namespace chaski::CHASKI_ISA
