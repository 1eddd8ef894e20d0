// The gated delta net and Mamba 2, chunk by chunk: the rules of order are in gated_delta.h.
//
// Decode and prefill use the same code: a tile of several tokens by several columns passes the state and the
// previous rows, with all sums in registers.
#include "gated_delta.h"

#include <algorithm>

#include "attention_kernel.h"
#include "tiles.h"
#include "vector_math.h"

namespace chaski::CHASKI_ISA {
namespace {

constexpr int kC = kDeltaChunk;
constexpr int kPanels = kC / kLanes;

// The known tokens of a chunk.
struct Scratch {
    float key_products[kC][kC];    // k_i k_j
    float query_products[kC][kC];  // q_i k_j
    float corrections[kC][kC];     // -(d_ij (k_i k_j))
    float answers[kC][kC];         // d_ij (q_i k_j)
    float decays[kC];              // e_i
    float last_decays[kC];         // d_lj
    float decayed[kC][kDeltaColumns];
    // The keys in panels follow it.
};

// y[r][v] = fma(rows[r][i], b[i][v], y[r][v]) for i = 0 to n - 1. The vectors of b are `apart` floats apart.
template <int R, int V>
CHASKI_INLINE void accumulate(const float* const (&rows)[R], const float* b, std::int64_t stride,
                              std::int64_t apart, std::int64_t n, F32x16 (&y)[R][V]) {
    for (std::int64_t i = 0; i < n; ++i) {
        F32x16 line[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) line[v] = load_f32(b + i * stride + v * apart);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const F32x16 x = splat(rows[r][i]);
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) y[r][v] = fma(line[v], x, y[r][v]);
        }
    }
}

template <int R, int V>
CHASKI_INLINE void clear(F32x16 (&y)[R][V]) {
#pragma GCC unroll 32
    for (int i = 0; i < R * V; ++i) y[i / V][i % V] = splat(0.0f);
}

template <int T>
constexpr int vectors_of() {
    return T == 1 ? kDeltaAloneVectors : kDeltaVectors;
}

CHASKI_INLINE F32x16 load_part(const float* p, std::int64_t count) {
    return count >= kLanes ? load_f32(p) : load_f32(p, static_cast<int>(count));
}
CHASKI_INLINE void store_part(float* p, F32x16 a, std::int64_t count) {
    count >= kLanes ? store_f32(p, a) : store_f32(p, a, static_cast<int>(count));
}

// The part of one chunk that a segment covers: the tokens first_ to last_ - 1 of the chunk. It is empty if a
// full chunk was open.
// kCorrects is false for Mamba 2, which has no products of keys with keys or with the state.
template <bool kCorrects>
class Chunk {
    // Rows of sums of T tokens: their pseudo values, if they need sums, then their results.
    template <int T>
    static constexpr int kRows = kCorrects ? 2 * T : T;
    template <int T>
    static constexpr int kAnswers = kCorrects ? T : 0;

   public:
    Chunk(const GatedDelta& job, const ChunkSegment& segment, std::int64_t key_head, std::int64_t chunk,
          std::byte* scratch)
        : job_(job),
          segment_(segment),
          key_head_(key_head),
          chunk_(chunk),
          is_first_(chunk == segment.since),
          first_(is_first_ ? segment.position - chunk : 0),
          last_(std::min<std::int64_t>(segment.end_position() - chunk, kC)),
          is_passed_(segment.end_position() > chunk + kC),
          s_(*reinterpret_cast<Scratch*>(scratch)),
          panels_(is_first_ ? job.rows(job.keys, key_head, segment, chunk)
                            : reinterpret_cast<float*>(scratch + sizeof(Scratch))) {}

    void run(std::int64_t begin, std::int64_t end) {
        if (!is_first_) pack_keys();
        multiply_keys();
        const std::int64_t blocks_per_head = job_.blocks() / job_.group();
        std::int64_t known = -1;
        for (std::int64_t block = begin; block < end; ++block) {
            const std::int64_t head = job_.head(key_head_, block / blocks_per_head);
            if (head != known) multiply_decays(head);
            known = head;
            const std::int64_t column = block % blocks_per_head * kDeltaColumns;
            advance(head, column);
            if (is_passed_) update_state(head, column);
        }
    }

   private:
    std::int64_t token(std::int64_t i) const { return segment_.token(chunk_ + i); }

    void pack_keys() {
        for (std::int64_t i = 0; i < last_; ++i) {
            const float* k = job_.key_row(job_.k, token(i), key_head_);
            float* lane = panels_ + i / kLanes * job_.key_size() * kLanes + i % kLanes;
            for (std::int64_t j = 0; j < job_.key_size(); ++j) lane[j * kLanes] = k[j];
        }
    }

    // Products of new keys and queries with all keys up to them; lanes after a token's own are meaningless.
    void multiply_keys() {
        for_parts<kDeltaTokens>(last_ - first_, [&](std::int64_t at, auto size) {
            constexpr int T = size.value;
            const std::int64_t i = first_ + at;
            const float* rows[kRows<T>];
            find_rows<T>(i, rows);
            for (std::int64_t p = 0; p <= (i + T - 1) / kLanes; ++p) {
                F32x16 y[kRows<T>][1];
                clear(y);
                accumulate(rows, panels_ + p * job_.key_size() * kLanes, kLanes, 0, job_.key_size(), y);
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t) {
                    if constexpr (kCorrects) store_f32(s_.key_products[i + t] + p * kLanes, y[t][0]);
                    store_f32(s_.query_products[i + t] + p * kLanes, y[kAnswers<T> + t][0]);
                }
            }
        });
    }

    // The keys, if they are used, then the queries, of the tokens from i on.
    template <int T>
    CHASKI_INLINE void find_rows(std::int64_t i, const float* (&rows)[kRows<T>]) const {
        for (int t = 0; t < T; ++t) {
            if constexpr (kCorrects) rows[t] = job_.key_row(job_.k, token(i + t), key_head_);
            rows[kAnswers<T> + t] = job_.key_row(job_.q, token(i + t), key_head_);
        }
    }

    // All decays of a head, and the products times them.
    void multiply_decays(std::int64_t head) {
        float since[kC] = {}, sums[kC] = {};
        float sum = 0.0f;
        const float* stored = job_.rows(job_.log_decays, head, segment_, chunk_);
        for (std::int64_t i = 0; i < last_; ++i) {
            const float g = is_first_ ? stored[i] : job_.log_decay[token(i) * job_.heads() + head];
            sum += g;
            for (std::int64_t j = 0; j < i; ++j) since[j] += g;
            sums[i] = sum;
            if (i < first_) continue;
            for (std::int64_t j = 0; j <= i; j += kLanes) {
                const F32x16 d = exp(load_f32(since + j));
                if constexpr (kCorrects) {
                    store_f32(s_.corrections[i] + j, -(d * load_f32(s_.key_products[i] + j)));
                }
                store_f32(s_.answers[i] + j, d * load_f32(s_.query_products[i] + j));
            }
        }
        if (is_passed_) {
            for (int j = 0; j < kC; j += kLanes) store_f32(s_.last_decays + j, exp(load_f32(since + j)));
        }
        for (int i = 0; i < kC; i += kLanes) store_f32(s_.decays + i, exp(load_f32(sums + i)));
    }

    const float* state(std::int64_t head) const {
        const std::int64_t cell = is_first_ ? segment_.source : segment_.target;
        return reinterpret_cast<const float*>(job_.states.row(head, cell));
    }

    // Pseudo values and results of a block of columns.
    void advance(std::int64_t head, std::int64_t column) {
        const std::int64_t vectors = std::min(job_.columns() - column, kDeltaColumns) / kLanes;
        for_parts<kDeltaTokens>(last_ - first_, [&](std::int64_t at, auto size) {
            constexpr int T = size.value;
            for_parts<vectors_of<T>()>(vectors, [&](std::int64_t v, auto width) {
                tile<T, width.value>(head, column + v * kLanes, first_ + at);
            });
        });
    }

    template <int T, int V>
    void tile(std::int64_t head, std::int64_t column, std::int64_t i) {
        const std::int64_t columns = job_.columns();
        const float* rows[kRows<T>];
        find_rows<T>(i, rows);
        F32x16 y[kRows<T>][V];  // for each token its future pseudo value, then its future result
        clear(y);
        accumulate(rows, state(head) + column, columns, kLanes, job_.key_size(), y);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const F32x16 decay = splat(s_.decays[i + t]);
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) {
                if constexpr (kCorrects) y[t][v] = fma(-decay, y[t][v], own_value(head, column, i + t, v));
                y[kAnswers<T> + t][v] = decay * y[kAnswers<T> + t][v];
            }
            if constexpr (kCorrects) rows[t] = s_.corrections[i + t];
            rows[kAnswers<T> + t] = s_.answers[i + t];
        }
        float* values = job_.rows(job_.values, head, segment_, chunk_) + column;
        accumulate(rows, values, columns, kLanes, i, y);
        finish<T, V>(head, column, i, values + i * columns, y);
    }

    // Vector v of a token's value from a column on.
    CHASKI_INLINE F32x16 own_value(std::int64_t head, std::int64_t column, std::int64_t i, int v) const {
        const std::int64_t place = token(i) * job_.heads() + head, first = column + v * kLanes;
        return load_part(job_.v + place * job_.value_size + first, job_.value_size - first);
    }

    // The rows of the tile itself, token by token.
    template <int T, int V>
    CHASKI_INLINE void finish(std::int64_t head, std::int64_t column, std::int64_t i, float* values,
                              F32x16 (&y)[kRows<T>][V]) {
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const std::int64_t place = token(i + t) * job_.heads() + head;
            const F32x16 beta = splat(job_.beta[place]);
#pragma GCC unroll 8
            for (int v = 0; v < V; ++v) {
                F32x16 own;
                if constexpr (kCorrects) {
                    own = beta * y[t][v];
                } else {
                    own = beta * own_value(head, column, i + t, v);
                }
                store_f32(values + t * job_.columns() + v * kLanes, own);
#pragma GCC unroll 8
                for (int u = t; u < T; ++u) {
                    F32x16& answer = y[kAnswers<T> + u][v];
                    answer = fma(own, splat(s_.answers[i + u][i + t]), answer);
                    if constexpr (kCorrects) {
                        if (u != t) y[u][v] = fma(own, splat(s_.corrections[i + u][i + t]), y[u][v]);
                    }
                }
                if constexpr (!kCorrects) {
                    F32x16& answer = y[kAnswers<T> + t][v];
                    answer = fma(splat(job_.skip[head]), own_value(head, column, i + t, v), answer);
                }
                store_part(job_.y + place * job_.value_size + column + v * kLanes, y[kAnswers<T> + t][v],
                           job_.value_size - column - v * kLanes);
            }
        }
    }

    // The state at the chunk's end, for a block of columns.
    void update_state(std::int64_t head, std::int64_t column) {
        const std::int64_t columns = job_.columns();
        const std::int64_t width = std::min(columns - column, kDeltaColumns);
        const float* values = job_.rows(job_.values, head, segment_, chunk_) + column;
        for (int j = 0; j < kC; ++j) {
            for (std::int64_t v = 0; v < width; v += kLanes) {
                store_f32(s_.decayed[j] + v, splat(s_.last_decays[j]) * load_f32(values + j * columns + v));
            }
        }
        const float* from = state(head) + column;
        float* to = reinterpret_cast<float*>(job_.states.row(head, segment_.target)) + column;
        for_parts<2 * kDeltaTokens>(job_.key_size(), [&](std::int64_t k, auto size) {
            for_parts<kDeltaVectors>(width / kLanes, [&](std::int64_t v, auto vectors) {
                update<size.value, vectors.value>(k, v * kLanes, from + k * columns + v * kLanes,
                                                  to + k * columns + v * kLanes);
            });
        });
    }

    template <int R, int V>
    void update(std::int64_t k, std::int64_t column, const float* from, float* to) const {
        const std::int64_t columns = job_.columns();
        const F32x16 decay = splat(s_.decays[kC - 1]);
        F32x16 y[R][V];
#pragma GCC unroll 32
        for (int i = 0; i < R * V; ++i) {
            y[i / V][i % V] = decay * load_f32(from + i / V * columns + i % V * kLanes);
        }
        for (std::int64_t p = 0; p < kPanels; ++p) {
            const float* rows[R];
            for (int r = 0; r < R; ++r) rows[r] = panels_ + (p * job_.key_size() + k + r) * kLanes;
            accumulate(rows, s_.decayed[p * kLanes] + column, kDeltaColumns, kLanes, kLanes, y);
        }
#pragma GCC unroll 32
        for (int i = 0; i < R * V; ++i) store_f32(to + i / V * columns + i % V * kLanes, y[i / V][i % V]);
    }

    const GatedDelta& job_;
    const ChunkSegment& segment_;
    const std::int64_t key_head_;
    const std::int64_t chunk_;
    const bool is_first_;
    const std::int64_t first_;
    const std::int64_t last_;
    const bool is_passed_;  // a token comes after it
    Scratch& s_;
    float* const panels_;
};

}  // namespace

std::size_t gated_delta_scratch(const GatedDelta& job) {
    return sizeof(Scratch) + static_cast<std::size_t>(job.key_size()) * kC * sizeof(float);
}

void gated_delta(const GatedDelta& job, const ChunkSegment& segment, std::int64_t key_head,
                 std::int64_t begin, std::int64_t end, std::byte* scratch) {
    for (std::int64_t chunk = segment.since; chunk < segment.end_position(); chunk += kC) {
        if (job.corrects()) {
            Chunk<true>(job, segment, key_head, chunk, scratch).run(begin, end);
        } else {
            Chunk<false>(job, segment, key_head, chunk, scratch).run(begin, end);
        }
    }
}

}  // namespace chaski::CHASKI_ISA
