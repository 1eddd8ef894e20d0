// A mixture of experts without its products: tokens choose experts, and rows are sorted by expert.
// native/steps/moe.h defines the operations.
#include "experts.h"
#include "formulas.h"
#include "softmax.h"

namespace chaski::CHASKI_ISA {

enum class Gating : int64_t {
    kSoftmax = 0,
    kSigmoid = 1,
    kChosenSoftmax = 2,
    kSqrtSoftplus = 3,
    kNearest = 4
};

constexpr float kNearness = 0.02f;  // of moe_ops.py

struct Router {
    const float* x;
    Count n;
    int64_t experts;
    int64_t count;
    int64_t gating;
    int64_t normalized;
    float scale;
    int64_t groups;
    int64_t used_groups;
    int64_t best_of_group;
    const float* bias;
    const int32_t* tokens;  // of each row, whose experts a table of [token][count] has; or null
    const int32_t* table;
    float* y;
};

CHASKI_INLINE float score_of(Gating gating, float logit) {
    if (gating == Gating::kSigmoid) return sigmoid(F32x16{logit}).v;
    if (gating == Gating::kSqrtSoftplus) return device::square_root(softplus(F32x16{logit}).v);
    return logit;
}

// An expert, its rank and its score.
struct Choice {
    float rank;
    float score;
    int32_t expert;

    CHASKI_INLINE bool is_behind(const Choice& other) const {
        return other.rank > rank || (other.rank == rank && other.expert < expert);
    }
};

CHASKI_INLINE Choice best_of_lanes(Choice own) {
    for (int apart = 8; apart > 0; apart /= 2) {
        const Choice other{device::from_lane(own.rank, apart), device::from_lane(own.score, apart),
                           device::from_lane(own.expert, apart)};
        if (own.is_behind(other)) own = other;
    }
    return own;
}

// The best of the experts [begin, end) that comes after `previous`; all lanes get it.
CHASKI_INLINE Choice best_after(const Choice& previous, const float* ranks, int64_t begin, int64_t end) {
    Choice best{-infinity(), 0.0f, static_cast<int32_t>(end)};
    for (int64_t e = lane(); e < end; e += kLanes) {
        const Choice own{ranks[e], 0.0f, static_cast<int32_t>(e)};
        if (e >= begin && own.is_behind(previous) && best.is_behind(own)) best = own;
    }
    return best_of_lanes(best);
}

// Gives the experts of unused groups the lowest rank; `room` has a float for each group.
CHASKI_INLINE void limit(const Router& a, float* ranks, float* room) {
    const int64_t size = a.experts / a.groups;
    for (int64_t g = 0; g < a.groups; ++g) {
        Choice each{infinity(), 0.0f, -1};
        float rank = 0.0f;
        for (int64_t j = 0; j < a.best_of_group; ++j) {
            each = best_after(each, ranks, g * size, (g + 1) * size);
            rank += each.rank;
        }
        if (g % kLanes == lane()) room[g] = -rank;
    }
    for (int64_t unused = a.used_groups; unused < a.groups; ++unused) {
        Choice worst{-infinity(), 0.0f, 1};  // by minus its number: the last of equals
        for (int64_t g = lane(); g < a.groups; g += kLanes) {
            const Choice own{room[g], 0.0f, static_cast<int32_t>(-g)};
            if (worst.is_behind(own)) worst = own;
        }
        worst = best_of_lanes(worst);
        const int64_t group = worst.expert > 0 ? 0 : -worst.expert;  // all ranks are NaN
        if (group % kLanes == lane()) room[group] = -infinity();
        for (int64_t e = lane(); e < (group + 1) * size; e += kLanes) {
            if (e >= group * size) ranks[e] = -infinity();
        }
    }
}

// The share of the best of the experts that are left among those near it; `room` has a float for each expert.
CHASKI_INLINE float share_of_nearest(const Router& a, const float* logits, const float* left, float highest,
                                     int64_t best, float* room) {
    for (int64_t e = lane(); e < a.experts; e += kLanes) {
        const float size = logits[e] < 0.0f ? -logits[e] : logits[e];
        const bool is_far = (highest - logits[e]) / (size > highest ? size : highest) > kNearness;
        room[e] = is_far ? -infinity() : left[e];
    }
    softmax(room, a.experts);
    return sum_lanes({best % kLanes == lane() ? room[best] : 0.0f});  // zeros change nothing
}

// There is a group of 16 lanes for each token, with `3 experts + count + groups` floats of shared memory.
CHASKI_KERNEL(router, Router) {
    const int64_t token = static_cast<int64_t>(blockIdx.x) * num_groups() + group();
    if (token >= *a.n) return;
    const auto gating = static_cast<Gating>(a.gating);
    float* scores =
        reinterpret_cast<float*>(device::shared()) + group() * (3 * a.experts + a.count + a.groups);
    float *ranks = scores + a.experts, *weights = ranks + a.experts, *room = weights + a.count;
    for (int64_t e = lane(); e < a.experts; e += kLanes) {
        scores[e] = score_of(gating, a.x[token * a.experts + e]);
    }
    if (gating == Gating::kSoftmax) softmax(scores, a.experts);
    for (int64_t e = lane(); e < a.experts; e += kLanes) {
        ranks[e] = a.bias == nullptr ? scores[e] : scores[e] + a.bias[e];
    }
    const float first = sum_lanes({lane() == 0 ? scores[0] : 0.0f});  // for all lanes
    if (a.groups > 1) limit(a, ranks, room + a.experts);
    float* y = a.y + token * 2 * a.count;
    for (int64_t j = 0; a.tokens != nullptr && j < a.count; ++j) {
        const int32_t expert = a.table[a.tokens[token] * a.count + j];
        const float weight = sum_lanes({expert % kLanes == lane() ? scores[expert] : 0.0f});  // for all lanes
        if (j % kLanes == lane()) {
            weights[j] = weight;
            y[j] = static_cast<float>(expert);
        }
    }
    for (int64_t j = 0; a.tokens == nullptr && j < a.count; ++j) {
        Choice best{-infinity(), 0.0f, static_cast<int32_t>(a.experts)};
        for (int64_t e = lane(); e < a.experts; e += kLanes) {
            const Choice own{ranks[e], scores[e], static_cast<int32_t>(e)};
            if (best.is_behind(own)) best = own;
        }
        best = best_of_lanes(best);
        if (best.expert >= a.experts) best = {0.0f, first, 0};  // all ranks are NaN
        float weight = best.score;
        if (gating == Gating::kNearest) {
            weight = share_of_nearest(a, scores, ranks, best.rank, best.expert, room);
        }
        if (best.expert % kLanes == lane()) ranks[best.expert] = -infinity();
        if (j % kLanes == lane()) {
            weights[j] = weight;
            y[j] = static_cast<float>(best.expert);
        }
    }
    if (gating == Gating::kChosenSoftmax) softmax(weights, a.count);
    float factor = a.scale;
    if (a.normalized) {
        float total = 0.0f;
        for (int64_t j = 0; j < a.count; ++j) {
            total += sum_lanes({j % kLanes == lane() ? weights[j] : 0.0f});  // zeros change nothing
        }
        factor /= total;
    }
    for (int64_t j = lane(); j < a.count; j += kLanes) y[a.count + j] = weights[j] * factor;
}

struct ScaleExperts {
    const float* x;
    Count n;
    int64_t experts;
    int64_t count;
    const float* scales;
    float* y;
};

// A NaN in the logits must not select an index outside the experts.
CHASKI_INLINE int32_t index_of(float expert, int64_t experts) {
    return expert >= 0.0f && expert < static_cast<float>(experts) ? static_cast<int32_t>(expert) : 0;
}

CHASKI_KERNEL(scale_experts, ScaleExperts) {
    const int64_t i = thread(), token = i / a.count, j = i % a.count;
    if (token >= *a.n) return;
    const float* x = a.x + token * 2 * a.count;
    float* y = a.y + token * 2 * a.count;
    y[j] = x[j];
    y[a.count + j] = x[a.count + j] * a.scales[index_of(x[j], a.experts)];
}

// `places` may be null: see GroupByExpertStep.
struct GroupByExpert {
    const float* routes;
    Count n;
    int64_t experts;
    int64_t count;
    int64_t matrices;
    const int32_t* places;
    Group* groups;
};

// There is one thread block. A warp takes a matrix and reads all tokens to place the matrix's rows in order.
// The last of `experts` matrices stands for experts that are elsewhere.
CHASKI_KERNEL(group_by_expert, GroupByExpert) {
    const int own = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    const int experts = static_cast<int>(a.matrices) + 1;
    const auto count = static_cast<int>(a.count), tokens = static_cast<int>(*a.n);
    auto* rows = reinterpret_cast<int32_t*>(device::shared());  // counts by expert, and then their starts
    int32_t* begins = rows + experts;
    const auto expert_of = [&](int token, int j) {
        const int32_t e = index_of(a.routes[static_cast<int64_t>(token) * 2 * count + j], a.experts);
        return a.places == nullptr ? e : a.places[e];
    };
    for (int e = own; e < experts; e += threads) rows[e] = 0;
    barrier();
    for (int token = own; token < tokens; token += threads) {
        for (int j = 0; j < count; ++j) device::add_shared(rows + expert_of(token, j), 1);
    }
    barrier();
    for (int e = own; e < experts; e += threads) {
        int32_t begin = 0, group = 0;
        for (int before = 0; before < e; ++before) {
            begin += rows[before];
            group += rows[before] > 0;
        }
        begins[e] = begin;
        if (e + 1 < experts) {
            if (rows[e] == 0) continue;
            a.groups[group].expert = e;
            a.groups[group].end = begin + rows[e];
            continue;
        }
        for (; group < tokens * count; ++group) {
            a.groups[group].expert = 0;
            a.groups[group].end = begin;
        }
    }
    barrier();
    for (int e = own / 32; e < experts; e += threads / 32) {
        if (rows[e] == 0) continue;
        int32_t next = begins[e];
        for (int first = 0; first < tokens; first += 32) {
            const int token = first + own % 32;
            int32_t before = 0, all = 0;  // rows of the previous tokens, and of all 32
            for (int j = 0; j < count; ++j) {
                const uint32_t found = device::votes(token < tokens && expert_of(token, j) == e);
                before += device::count_bits(found & ((1u << own % 32) - 1));
                all += device::count_bits(found);
            }
            int32_t row = next + before;
            for (int j = 0; token < tokens && j < count; ++j) {
                if (expert_of(token, j) != e) continue;
                a.groups[row].pair = token * count + j;
                a.groups[token * count + j].row = row;
                ++row;
            }
            next += all;
        }
    }
}

// Rows of `width` elements; `routes` may be null.
struct Sorted {
    const float* x;
    Count n;
    int64_t count;
    int64_t width;
    const float* routes;
    const Group* groups;
    float* y;
};

CHASKI_INLINE float weight_of(const Sorted& a, int64_t pair) {
    return a.routes[(2 * (pair / a.count) + 1) * a.count + pair % a.count];
}

// There is a thread for each element of the rows of pairs.
CHASKI_KERNEL(dispatch, Sorted) {
    const int64_t i = thread(), row = i / a.width;
    if (row >= *a.n * a.count) return;
    const int64_t pair = a.groups[row].pair;
    const float x = a.x[pair / a.count * a.width + i % a.width];
    a.y[i] = a.routes == nullptr ? x : x * weight_of(a, pair);
}

struct JoinExperts {
    const float* x;
    Count n;
    int64_t count;
    int64_t width;
    const Group* groups;
    const float* other;
    const Group* other_groups;
    float* y;
};

// There is a thread for each element of the rows of pairs.
CHASKI_KERNEL(join_experts, JoinExperts) {
    const int64_t i = thread(), row = i / a.width, rows = *a.n * a.count;
    if (row >= rows) return;
    const bool is_own = row < a.groups[rows - 1].end;
    a.y[i] = is_own ? a.x[i] : a.other[a.other_groups[a.groups[row].pair].row * a.width + i % a.width];
}

struct ScaleByExpert {
    const float* x;
    Count n;
    int64_t count;
    int64_t width;
    int64_t experts;
    const float* scales;
    const Group* groups;
    float* y;
};

// There is a thread for each element of the rows of pairs.
CHASKI_KERNEL(scale_by_expert, ScaleByExpert) {
    const int64_t i = thread(), row = i / a.width, rows = *a.n * a.count;
    if (row >= rows) return;
    int64_t group = 0;
    for (int64_t left = rows - 1; left > 0;) {  // the first group that ends after the row
        const int64_t half = (left + 1) / 2;
        if (a.groups[group + half - 1].end <= row) {
            group += half;
            left -= half;
        } else {
            left = half - 1;
        }
    }
    a.y[i] = a.x[i] * a.scales[a.groups[group].expert];
}

// There is a thread for each element of the rows of tokens.
CHASKI_KERNEL(combine, Sorted) {
    const int64_t i = thread(), token = i / a.width;
    if (token >= *a.n) return;
    float sum = 0.0f;
    for (int64_t pair = token * a.count; pair < (token + 1) * a.count; ++pair) {
        const float weight = a.routes == nullptr ? 1.0f : weight_of(a, pair);
        sum = device::fma(a.x[a.groups[pair].row * a.width + i % a.width], weight, sum);
    }
    a.y[i] = sum;
}

}  // namespace chaski::CHASKI_ISA
