// Scales of quantized blocks: finds the grid with the smallest error for each sub-block. A lane is a
// sub-block, so no sum crosses lanes: each lane adds its products in the order of the elements, without fused
// operations.
#include <cmath>

#include "entry_points.h"
#include "vector_math.h"

namespace chaski::CHASKI_ISA {
namespace {

constexpr float kNoSpread = 1e-15f, kSameLevels = 1e-6f;
// Differences that only rounding causes. Values on a grid lie on many lines exactly; the first one is kept.
constexpr float kSameError = 1e-12f, kSameGain = 1.0f + 2e-7f;

struct alignas(64) Lanes {
    float v[kLanes];
};

CHASKI_INLINE float reciprocal(float x) { return std::fabs(x) > kNoSpread ? 1.0f / x : 0.0f; }
CHASKI_INLINE float below_zero(float x) { return x < 0.0f ? x : 0.0f; }

// The elements of up to 16 sub-blocks, one vector per element; missing sub-blocks are zeros.
template <int kElements>
void transpose(const float* x, int64_t count, Lanes (&out)[kElements]) {
    for (int i = 0; i < kElements; ++i)
        for (int r = 0; r < kLanes; ++r) out[i].v[r] = r < count ? x[r * kElements + i] : 0.0f;
}

CHASKI_INLINE F32x16 nearest(F32x16 x, F32x16 low, F32x16 high) {
    return to_f32(round_to_i32(min(max(x, low), high)));
}

// Calls `f` with the number of elements of a sub-block as a constant.
template <class F>
CHASKI_INLINE void with_elements(int64_t elements, const F& f) {
    if (elements == 8) return f(Index<8>{});
    if (elements == 16) return f(Index<16>{});
    f(Index<32>{});
}

// The same for whole blocks too.
template <class F>
CHASKI_INLINE void with_elements_of_any(int64_t elements, const F& f) {
    if (elements == 64) return f(Index<64>{});
    if (elements == 256) return f(Index<256>{});
    with_elements(elements, f);
}

// The best line `scale * level + low`, low <= 0, found so far for each of 16 sub-blocks.
template <int kElements>
class LineSearch {
   public:
    // weights: the elements' shares in the error; null for |x| + the root mean square of the sub-block.
    LineSearch(const float* x, const float* weights, int64_t count, float top)
        : is_weighted_(weights != nullptr), top_(top) {
        transpose(x, count, x_);
        if (is_weighted_) transpose(weights, count, weight_);
        F32x16 squares = splat(0.0f), low = load_f32(x_[0].v), high = low;
        for (const Lanes& each : x_) {
            const F32x16 value = load_f32(each.v);
            squares = squares + value * value;
            low = min(low, value);
            high = max(high, value);
        }
        Lanes mean;
        store_f32(mean.v, squares);
        store_f32(low_.v, low);
        store_f32(high_.v, high);
        for (int r = 0; r < kLanes; ++r) {
            mean.v[r] = std::sqrt(mean.v[r] / kElements);
            low_.v[r] = below_zero(low_.v[r]);
            scale_.v[r] = 0.0f;
            error_.v[r] = INFINITY;
        }
        lowest_ = low_;
        if (is_weighted_) find_pivots();
        if (!is_weighted_) weigh(load_f32(mean.v));
        sum_up();
    }

    // Tries a line with this many intervals up to the highest value: from the lowest value with weights,
    // which finds the line of values that lie on one, and else from the start of the best line.
    void propose_span(float intervals) {
        const Lanes start = is_weighted_ ? lowest_ : low_;
        Lanes inverse;
        for (int r = 0; r < kLanes; ++r) inverse.v[r] = reciprocal(high_.v[r] - start.v[r]) * intervals;
        propose(inverse, start);
    }

    void propose_again() {
        Lanes inverse;
        for (int r = 0; r < kLanes; ++r) inverse.v[r] = reciprocal(scale_.v[r]);
        propose(inverse, low_);
    }

    void write(int64_t count, float* scales, float* minimums) const {
        for (int64_t r = 0; r < count; ++r) {
            scales[r] = scale_.v[r];
            minimums[r] = 0.0f - low_.v[r];
        }
    }

   private:
    void weigh(F32x16 mean) {
        for (int i = 0; i < kElements; ++i) {
            const F32x16 x = load_f32(x_[i].v);
            store_f32(weight_[i].v, max(x, -x) + mean);
        }
    }

    void find_pivots() {
        Lanes largest{};
        for (int i = 0; i < kElements; ++i) {
            for (int r = 0; r < kLanes; ++r) {
                const bool is_larger = weight_[i].v[r] > largest.v[r];
                largest.v[r] = is_larger ? weight_[i].v[r] : largest.v[r];
                pivot_.v[r] = is_larger ? x_[i].v[r] : pivot_.v[r];
            }
        }
    }

    void sum_up() {
        const F32x16 pivot = load_f32(pivot_.v);
        F32x16 w = splat(0.0f), wx = w, wxx = w;
        for (int i = 0; i < kElements; ++i) {
            const F32x16 x = load_f32(x_[i].v) - pivot, weight = load_f32(weight_[i].v), product = weight * x;
            w = w + weight;
            wx = wx + product;
            wxx = wxx + product * x;
        }
        store_f32(sum_w_.v, w);
        store_f32(sum_x_.v, wx);
        store_f32(sum_xx_.v, wxx);
    }

    void propose(const Lanes& inverse, const Lanes& first) {
        const F32x16 by = load_f32(inverse.v), low = load_f32(first.v), zero = splat(0.0f), top = splat(top_);
        const F32x16 pivot = load_f32(pivot_.v);
        const auto level_of = [&](F32x16 x) __attribute__((always_inline)) {
            return nearest((x + -low) * by, zero, top);
        };
        const F32x16 pivot_level = is_weighted_ ? level_of(pivot) : zero;
        F32x16 l = zero, ll = zero, xl = zero;
        for (int i = 0; i < kElements; ++i) {
            const F32x16 x = load_f32(x_[i].v), level = level_of(x) - pivot_level;
            const F32x16 weighted = load_f32(weight_[i].v) * level;
            l = l + weighted;
            ll = ll + weighted * level;
            xl = xl + weighted * (x - pivot);
        }
        Lanes sum_l, sum_ll, sum_xl, at;
        store_f32(sum_l.v, l);
        store_f32(sum_ll.v, ll);
        store_f32(sum_xl.v, xl);
        store_f32(at.v, pivot_level);
        Line line;
        for (int r = 0; r < kLanes; ++r) fit(r, sum_l.v[r], sum_ll.v[r], sum_xl.v[r], at.v[r], line);
        if (is_weighted_) {
            const F32x16 scale = load_f32(line.scale.v), start = load_f32(line.low.v);
            F32x16 error = zero;
            for (int i = 0; i < kElements; ++i) {
                const F32x16 x = load_f32(x_[i].v), rest = (scale * level_of(x) + start) - x;
                error = error + load_f32(weight_[i].v) * (rest * rest);
            }
            store_f32(line.error.v, error);
        }
        for (int r = 0; r < kLanes; ++r) keep_better(r, line);
    }

    struct Line {
        Lanes scale, low, error;
    };

    // The weighted least-squares line over the levels. It goes through zero if it would start above zero, or
    // if all levels are the same. The sums are about the pivot, whose level is `at`.
    CHASKI_INLINE void fit(int r, float l, float ll, float xl, float at, Line& line) {
        const float w = sum_w_.v[r], x = sum_x_.v[r], pivot = pivot_.v[r];
        const float determinant = w * ll - l * l;
        const float inverse = determinant > kSameLevels * w * ll ? reciprocal(determinant) : 0.0f;
        const float start = ((ll * x - l * xl) * inverse + pivot) - (w * xl - l * x) * inverse * at;
        const float slope = (w * xl - l * x) * inverse;
        const bool through_zero = start > 0.0f || inverse == 0.0f;
        const float from_zero = ll + at * (2.0f * l + at * w);
        const float product = (xl + at * x) + pivot * (l + at * w);
        const float scale = through_zero ? product * reciprocal(from_zero) : slope;
        const float low = through_zero ? 0.0f : below_zero(start);
        const float slope_part = scale * (scale * ll - 2.0f * xl);
        const float low_part = low * (low * w + 2.0f * (scale * l - x));
        line.scale.v[r] = scale;
        line.low.v[r] = low;
        line.error.v[r] = (sum_xx_.v[r] + slope_part) + low_part;
    }

    CHASKI_INLINE void keep_better(int r, const Line& line) {
        const float least = error_.v[r] - kSameError * sum_xx_.v[r];
        const bool better = line.error.v[r] < least && line.scale.v[r] > 0.0f;
        error_.v[r] = better ? line.error.v[r] : error_.v[r];
        scale_.v[r] = better ? line.scale.v[r] : scale_.v[r];
        low_.v[r] = better ? line.low.v[r] : low_.v[r];
    }

    bool is_weighted_;
    float top_;
    Lanes x_[kElements], weight_[kElements];
    // The element of largest weight. A weight may exceed the others a millionfold, and sums about that
    // element keep the small ones. 0 without weights.
    Lanes pivot_{};
    Lanes lowest_, low_, high_, scale_, error_, sum_w_, sum_x_, sum_xx_;
};

// Whole levels within a range.
struct WholeLevels {
    float low, high;
    CHASKI_INLINE F32x16 operator()(F32x16 x) const { return nearest(x, splat(low), splat(high)); }
};

// The nearest of sixteen ascending whole numbers of -128 to 127. Numbers between two middles have the same
// nearest one, and middles are multiples of a half.
class ListedLevels {
   public:
    explicit ListedLevels(const float* values) {
        int nearest = 0;
        for (int half = 0; half < kHalves; ++half) {
            while (nearest < 15 && values[nearest] + values[nearest + 1] <= static_cast<float>(half - kZero))
                ++nearest;
            table_[half] = values[nearest];
        }
    }

    CHASKI_INLINE F32x16 operator()(F32x16 x) const {
        const F32x16 half =
            min(max(x + x + splat(static_cast<float>(kZero)), splat(0.0f)), splat(kHalves - 1.0f));
        alignas(64) int32_t places[kLanes];
        store_i32(places, truncate_to_i32(half));
        Lanes level;
        for (int r = 0; r < kLanes; ++r) level.v[r] = table_[places[r]];
        return load_f32(level.v);
    }

   private:
    static constexpr int kHalves = 512, kZero = 256;
    float table_[kHalves];
};

// The scales of 16 sub-blocks whose levels have a small error. weights: the elements' shares in it; null for
// the squares of x. Each place is the level of the largest magnitude for one try. The best scale for given
// levels is a projection, whose length measures its quality.
template <int kElements, class Levels>
void fit_16(const float* x, const float* weights, int64_t count, const Levels& levels, const float* places,
            int64_t num_places, float* scales) {
    Lanes values[kElements], weight[kElements], inverse, largest{}, extreme{}, best{}, gains{};
    transpose(x, count, values);
    if (weights != nullptr) transpose(weights, count, weight);
    for (int i = 0; i < kElements; ++i) {
        const Lanes& each = values[i];
        if (weights == nullptr) store_f32(weight[i].v, load_f32(each.v) * load_f32(each.v));
        for (int r = 0; r < kLanes; ++r) {
            const float size = std::fabs(each.v[r]);
            extreme.v[r] = size > largest.v[r] ? each.v[r] : extreme.v[r];
            largest.v[r] = size > largest.v[r] ? size : largest.v[r];
        }
    }
    for (int r = 0; r < kLanes; ++r) inverse.v[r] = reciprocal(extreme.v[r]);
    for (int64_t place = 0; place < num_places; ++place) {
        const F32x16 by = load_f32(inverse.v) * splat(places[place]);
        F32x16 ll = splat(0.0f), xl = ll;
        for (int i = 0; i < kElements; ++i) {
            const F32x16 value = load_f32(values[i].v), level = levels(value * by);
            const F32x16 weighted = load_f32(weight[i].v) * level;
            ll = ll + weighted * level;
            xl = xl + weighted * value;
        }
        Lanes sum_ll, sum_xl;
        store_f32(sum_ll.v, ll);
        store_f32(sum_xl.v, xl);
        for (int r = 0; r < kLanes; ++r) {
            const float scale = sum_xl.v[r] * reciprocal(sum_ll.v[r]), gain = scale * sum_xl.v[r];
            const bool is_better = gain > kSameGain * gains.v[r];
            best.v[r] = is_better ? scale : best.v[r];
            gains.v[r] = is_better ? gain : gains.v[r];
        }
    }
    for (int64_t r = 0; r < count; ++r) scales[r] = best.v[r];
}

template <class Levels>
void fit(const SubBlocks& x, const Levels& levels, const float* places, int64_t num_places, float* scales) {
    with_elements_of_any(x.elements, [&](auto elements) {
        for (int64_t i = 0; i < x.count; i += kLanes) {
            const int64_t count = x.count - i < kLanes ? x.count - i : kLanes;
            const float* weights = x.weights != nullptr ? x.weights + elements * i : nullptr;
            fit_16<elements>(x.values + elements * i, weights, count, levels, places, num_places, scales + i);
        }
    });
}

// The lines with the smallest errors for 16 sub-blocks, the first ones of these. `begin` is the number of the
// first sub-block.
template <int kElements>
void choose_16(const SubBlocks& x, int64_t begin, int64_t count, float top, const Lines& lines,
               const ChosenLines& out) {
    Lanes values[kElements], weight[kElements], least, scale{}, minimum{}, tried, start, inverse;
    transpose(x.values + kElements * begin, count, values);
    transpose(x.weights + kElements * begin, count, weight);
    const auto level_of = [&](int i) __attribute__((always_inline)) {
        const F32x16 from_start = load_f32(values[i].v) + load_f32(start.v);
        return nearest(from_start * load_f32(inverse.v), splat(0.0f), splat(top));
    };
    const auto error_of = [&](int i, F32x16 level) __attribute__((always_inline)) {
        const F32x16 rest = (load_f32(tried.v) * level - load_f32(start.v)) - load_f32(values[i].v);
        return load_f32(weight[i].v) * (rest * rest);
    };
    uint8_t choice[kLanes] = {};
    for (int64_t line = 0; line < lines.count * lines.count; ++line) {
        const float* scales = lines.scales + line / lines.count * x.count + begin;
        const float* minimums = lines.minimums + line % lines.count * x.count + begin;
        for (int r = 0; r < kLanes; ++r) {
            tried.v[r] = r < count ? scales[r] : 0.0f;
            start.v[r] = r < count ? minimums[r] : 0.0f;
            inverse.v[r] = reciprocal(tried.v[r]);
        }
        F32x16 error = splat(0.0f);
        for (int i = 0; i < kElements; ++i) error = error + error_of(i, level_of(i));
        Lanes errors;
        store_f32(errors.v, error);
        for (int r = 0; r < kLanes; ++r) {
            const bool is_better = line == 0 || errors.v[r] < least.v[r];
            least.v[r] = is_better ? errors.v[r] : least.v[r];
            scale.v[r] = is_better ? tried.v[r] : scale.v[r];
            minimum.v[r] = is_better ? start.v[r] : minimum.v[r];
            choice[r] = is_better ? static_cast<uint8_t>(line) : choice[r];
        }
    }
    for (int r = 0; r < kLanes; ++r) inverse.v[r] = reciprocal(scale.v[r]);
    start = minimum;
    F32x16 w = splat(0.0f), wx = w, l = w, ll = w, xl = w;
    for (int i = 0; i < kElements; ++i) {
        const F32x16 share = load_f32(weight[i].v), level = level_of(i), value = load_f32(values[i].v);
        const F32x16 weighted = share * level;
        w = w + share;
        wx = wx + share * value;
        l = l + weighted;
        ll = ll + weighted * level;
        xl = xl + weighted * value;
        int32_t whole[kLanes];
        store_i32(whole, truncate_to_i32(level));
        for (int64_t r = 0; r < count; ++r)
            out.levels[kElements * (begin + r) + i] = static_cast<uint8_t>(whole[r]);
    }
    Lanes sums[kLineSums] = {least};
    const F32x16 others[] = {w, wx, l, ll, xl};
    for (int k = 1; k < kLineSums; ++k) store_f32(sums[k].v, others[k - 1]);
    for (int64_t r = 0; r < count; ++r) {
        out.choices[begin + r] = choice[r];
        for (int k = 0; k < kLineSums; ++k) out.sums[kLineSums * (begin + r) + k] = sums[k].v[r];
    }
}

}  // namespace

void choose_lines(const SubBlocks& x, float top, const Lines& lines, const ChosenLines& out) {
    with_elements(x.elements, [&](auto elements) {
        for (int64_t i = 0; i < x.count; i += kLanes)
            choose_16<elements>(x, i, x.count - i < kLanes ? x.count - i : kLanes, top, lines, out);
    });
}

void fit_affine(const SubBlocks& x, float top, const float* intervals, int64_t num_intervals, float* scales,
                float* minimums) {
    with_elements(x.elements, [&](auto elements) {
        for (int64_t i = 0; i < x.count; i += kLanes) {
            const int64_t count = x.count - i < kLanes ? x.count - i : kLanes;
            const float* weights = x.weights != nullptr ? x.weights + elements * i : nullptr;
            LineSearch<elements> search(x.values + elements * i, weights, count, top);
            for (int64_t step = 0; step < num_intervals; ++step) search.propose_span(intervals[step]);
            for (int again = 0; again < 2; ++again) search.propose_again();
            search.write(count, scales + i, minimums + i);
        }
    });
}

void fit_symmetric(const SubBlocks& x, float low, float high, const float* places, int64_t num_places,
                   float* scales) {
    fit(x, WholeLevels{low, high}, places, num_places, scales);
}

void fit_listed(const SubBlocks& x, const float* values, const float* places, int64_t num_places,
                float* scales) {
    fit(x, ListedLevels(values), places, num_places, scales);
}

}  // namespace chaski::CHASKI_ISA
