#include "moe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "elements.h"

namespace chaski {

namespace {

constexpr float kNearness = 0.02f;  // of Python's moe_ops

// A NaN in the logits must not select an index outside the experts.
std::int32_t index_of(float expert, std::int64_t experts) {
    return expert >= 0.0f && expert < static_cast<float>(experts) ? static_cast<std::int32_t>(expert) : 0;
}

}  // namespace

RouterStep::RouterStep(const Ops& ops, int dim, RouterConfig router, const float* logits, float* routes)
    : RowStep(dim),
      ops_(ops),
      router_(std::move(router)),
      softplus_(find_elementwise(ops, "softplus")),
      logits_(logits),
      routes_(routes) {}

void RouterStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const {
    auto* scores = reinterpret_cast<float*>(scratch);
    float* ranks = scores + router_.experts;
    for (std::int64_t i = begin; i < end; ++i) {
        float* experts = routes_ + i * 2 * router_.count;
        score(logits_ + i * router_.experts, scores);
        if (router_.tokens != nullptr) {
            look_up(i, experts);
            set_weights(scores, experts, experts + router_.count);
            continue;
        }
        for (std::int64_t e = 0; e < router_.experts; ++e) {
            ranks[e] = router_.bias == nullptr ? scores[e] : scores[e] + router_.bias[e];
        }
        if (router_.groups > 1) limit(ranks, ranks + router_.experts);
        choose(logits_ + i * router_.experts, ranks, experts, ranks + router_.experts);
        set_weights(scores, experts, experts + router_.count);
    }
}

void RouterStep::score(const float* logits, float* scores) const {
    switch (router_.gating) {
        case Gating::kSoftmax:
            return ops_.softmax(logits, router_.experts, scores);
        case Gating::kSigmoid:
            return ops_.sigmoid(logits, router_.experts, scores);
        case Gating::kSqrtSoftplus:
            softplus_.apply(&logits, nullptr, router_.experts, scores);
            for (std::int64_t e = 0; e < router_.experts; ++e) scores[e] = std::sqrt(scores[e]);
            return;
        case Gating::kChosenSoftmax:
        case Gating::kNearest:
            std::copy(logits, logits + router_.experts, scores);
    }
}

void RouterStep::look_up(std::int64_t row, float* experts) const {
    const std::int32_t* chosen = router_.table.data() + router_.tokens[row] * router_.count;
    for (std::int64_t j = 0; j < router_.count; ++j) experts[j] = static_cast<float>(chosen[j]);
}

void RouterStep::limit(float* ranks, float* room) const {
    const std::int64_t size = router_.experts / router_.groups;
    float *best = room + router_.groups, *best_end = best + router_.best_of_group;
    for (std::int64_t g = 0; g < router_.groups; ++g) {
        const float* group = ranks + g * size;
        std::partial_sort_copy(group, group + size, best, best_end, std::greater<>());
        room[g] = 0.0f;
        for (const float* rank = best; rank < best_end; ++rank) room[g] += *rank;
    }
    for (std::int64_t unused = router_.used_groups; unused < router_.groups; ++unused) {
        std::int64_t worst = 0;  // the last of equals
        for (std::int64_t g = 0; g < router_.groups; ++g) worst = room[g] <= room[worst] ? g : worst;
        room[worst] = std::numeric_limits<float>::infinity();
        std::fill_n(ranks + worst * size, size, -std::numeric_limits<float>::infinity());
    }
}

void RouterStep::choose(const float* logits, float* ranks, float* experts, float* room) const {
    for (std::int64_t j = 0; j < router_.count; ++j) {
        float* best = std::max_element(ranks, ranks + router_.experts);  // the first of equals
        experts[j] = static_cast<float>(best - ranks);
        if (router_.gating == Gating::kNearest) {
            experts[router_.count + j] = share_of_nearest(logits, ranks, best - ranks, room);
        }
        *best = -std::numeric_limits<float>::infinity();
    }
}

float RouterStep::share_of_nearest(const float* logits, const float* left, std::int64_t best,
                                   float* room) const {
    const float highest = left[best];
    for (std::int64_t e = 0; e < router_.experts; ++e) {
        bool is_far = (highest - logits[e]) / std::max(std::abs(logits[e]), highest) > kNearness;
        room[e] = is_far ? -std::numeric_limits<float>::infinity() : left[e];
    }
    ops_.softmax(room, router_.experts, room);
    return room[best];
}

void RouterStep::set_weights(const float* scores, const float* experts, float* weights) const {
    for (std::int64_t j = 0; j < router_.count && router_.gating != Gating::kNearest; ++j) {
        weights[j] = scores[static_cast<int>(experts[j])];
    }
    if (router_.gating == Gating::kChosenSoftmax) ops_.softmax(weights, router_.count, weights);
    float factor = router_.scale;
    if (router_.normalized) {
        float total = 0.0f;
        for (std::int64_t j = 0; j < router_.count; ++j) total += weights[j];
        factor /= total;
    }
    for (std::int64_t j = 0; j < router_.count; ++j) weights[j] *= factor;
}

void ScaleExpertsStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const {
    for (std::int64_t i = begin; i < end; ++i) {
        const float* chosen = routes_ + i * 2 * count_;
        float* scaled = scaled_ + i * 2 * count_;
        for (std::int64_t j = 0; j < count_; ++j) {
            scaled[j] = chosen[j];
            scaled[count_ + j] = chosen[count_ + j] * scales_[index_of(chosen[j], experts_)];
        }
    }
}

std::int32_t GroupByExpertStep::matrix_of(std::int64_t pair) const {
    std::int32_t expert = index_of(routes_[pair / count_ * 2 * count_ + pair % count_], experts_);
    return places_ == nullptr ? expert : places_[expert];
}

void GroupByExpertStep::run(const Sizes& sizes, std::int64_t, std::int64_t, std::byte* scratch) const {
    std::int64_t pairs = sizes[dim_] * count_;
    auto* next = reinterpret_cast<std::int32_t*>(scratch);  // of each matrix: row count, then next row
    std::fill(next, next + matrices_ + 1, 0);               // the last one is of experts that are elsewhere
    for (std::int64_t pair = 0; pair < pairs; ++pair) ++next[matrix_of(pair)];
    std::int32_t row = 0;
    std::int64_t group = 0;
    for (std::int32_t matrix = 0; matrix < matrices_; ++matrix) {
        std::int32_t rows = next[matrix];
        next[matrix] = row;
        row += rows;
        if (rows > 0) {
            groups_[group].expert = matrix;
            groups_[group++].end = row;
        }
    }
    next[matrices_] = row;
    for (; group < pairs; ++group) {
        groups_[group].expert = 0;
        groups_[group].end = row;
    }
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
        std::int32_t own = next[matrix_of(pair)]++;
        groups_[own].pair = static_cast<std::int32_t>(pair);
        groups_[pair].row = own;
    }
}

namespace {

// Calls f(row, pair) for the rows of pairs, sorted by expert.
template <class F>
std::unique_ptr<Step> each_pair(int dim, std::int64_t count, const Group* groups, F f) {
    return each_row(dim, [=](std::int64_t i) {
        for (std::int64_t row = i * count; row < (i + 1) * count; ++row) f(row, groups[row].pair);
    });
}

// The weight of a pair.
float weight_of(const float* routes, std::int64_t count, std::int64_t pair) {
    return routes[(2 * (pair / count) + 1) * count + pair % count];
}

}  // namespace

std::unique_ptr<Step> dispatch(const Ops& ops, int dim, std::int64_t count, std::int64_t width,
                               const float* x, const float* routes, const Group* groups, float* y) {
    return each_pair(dim, count, groups, [=, &ops](std::int64_t row, std::int64_t pair) {
        const float* from = x + pair / count * width;
        float* to = y + row * width;
        if (routes == nullptr) {
            std::memcpy(to, from, width * sizeof(float));
        } else {
            ops.scale(from, weight_of(routes, count, pair), width, to);
        }
    });
}

std::unique_ptr<Step> dispatch_quantized(int dim, std::int64_t count, std::int64_t width,
                                         const Activations& x, const Group* groups, const Activations& y) {
    return each_pair(dim, count, groups, [=](std::int64_t row, std::int64_t pair) {
        copy_activations(behind(x, pair / count * width), width, behind(y, row * width));
    });
}

std::unique_ptr<Step> scale_by_expert(const Ops& ops, int dim, std::int64_t count, std::int64_t width,
                                      const float* scales, const float* x, const Group* groups, float* y) {
    return each_row(dim, [=, &ops](std::int64_t i) {
        const Group* group = groups;
        std::int32_t begin = 0;
        for (std::int64_t row = i * count; row < (i + 1) * count; ++row) {
            while (begin < group->end && group->end <= row) begin = group++->end;
            if (group->end <= row) return;  // the rows that are left belong to no group
            ops.scale(x + row * width, scales[group->expert], width, y + row * width);
        }
    });
}

void RequestExpertsStep::run(const Sizes& sizes, std::int64_t, std::int64_t, std::byte* scratch) const {
    auto* chosen = reinterpret_cast<ChosenExpert*>(scratch);
    std::size_t size = 0;
    std::int32_t row = 0;
    const Group* end = groups_ + sizes[dim_] * count_;
    for (const Group* group = groups_; group < end && group->end > row; row = group++->end) {
        chosen[size++] = {group->expert, group->end - row};
    }
    store_->request(stacks_, std::span(chosen, size), sizes[dim_]);
}

void ExpertMatmulStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const {
    const std::int64_t panels = num_panels(experts_.rows);
    while (begin < end) {
        std::int64_t group = begin / slabs_, stop = std::min(end, (group + 1) * slabs_);
        if (groups_[group].end == first_row(group)) return;  // and so are all later ones
        const std::int64_t first = (begin - group * slabs_) * kSlab, last = (stop - group * slabs_) * kSlab;
        if (experts_.store != nullptr) group = experts_.store->order(experts_.number)[group];
        multiply(group, first, std::min(last, panels), scratch);
        begin = stop;
    }
}

void ExpertMatmulStep::multiply(std::int64_t group, std::int64_t panel_begin, std::int64_t panel_end,
                                std::byte* scratch) const {
    const std::int32_t expert = groups_[group].expert;
    const auto& [_, rows, k, all, store, stack] = experts_;
    const std::int64_t row = first_row(group), n = groups_[group].end - row;
    const Output out{y_ + row * rows, rows, bias_ == nullptr ? nullptr : bias_ + expert * rows, nullptr};
    const Activations x = behind(x_, row * k);
    if (store == nullptr) return multiply_(all[expert], panel_begin, panel_end, x, n, out, scratch);
    if (const std::uint8_t* panels = store->panels(stack, expert)) {
        const Matrix m{store->stack(stack).type, rows, k, panels};
        multiply_(m, panel_begin, panel_end, x, n, out, scratch);
    } else {
        const std::int64_t begin = panel_begin * kLanes, end = std::min(panel_end * kLanes, rows);
        for (std::int64_t i = row; i < row + n; ++i) {
            std::fill(y_ + i * rows + begin, y_ + i * rows + end, 0.0f);
            store->miss(stack, expert, dim_, groups_[i].pair / count_);
        }
    }
    store->computed(stack, expert, panel_end - panel_begin);
}

std::size_t ExpertMatmulStep::scratch_bytes() const {
    if (experts_.store == nullptr) return multiply_.scratch_bytes(experts_.all[0], max_tokens_);
    const Matrix m{experts_.store->stack(experts_.number).type, experts_.rows, experts_.k, nullptr};
    return multiply_.scratch_bytes(m, max_tokens_);
}

void JoinExpertsStep::run(const Sizes& sizes, std::int64_t begin, std::int64_t end, std::byte*) const {
    const std::int64_t own = groups_[sizes[dim_] * count_ - 1].end;
    for (std::int64_t row = begin * count_; row < end * count_; ++row) {
        const float* from =
            row < own ? x_ + row * width_ : other_ + other_groups_[groups_[row].pair].row * width_;
        std::memcpy(y_ + row * width_, from, width_ * sizeof(float));
    }
}

std::unique_ptr<Step> combine(const Ops& ops, int dim, std::int64_t count, std::int64_t width, const float* x,
                              const float* routes, const Group* groups, float* y) {
    return each_row(dim, [=, &ops](std::int64_t token) {
        float* sum = y + token * width;
        std::fill(sum, sum + width, 0.0f);
        for (std::int64_t pair = token * count; pair < (token + 1) * count; ++pair) {
            float weight = routes == nullptr ? 1.0f : weight_of(routes, count, pair);
            ops.add_scaled(sum, x + groups[pair].row * width, weight, width);
        }
    });
}

}  // namespace chaski
