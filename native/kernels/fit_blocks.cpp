// Scales of quantized blocks: finds the grid with the smallest error for each sub-block. A lane is a
// sub-block, so no sum crosses lanes: each lane adds its products in the order of the elements, without fused
// operations.
#include <cmath>

#include "entry_points.h"
#include "lanes.h"

namespace chaski::CHASKI_ISA {
namespace {

constexpr float kNoSpread = 1e-15f, kSameLevels = 1e-6f;
// Differences that only rounding causes. Values on a grid lie on many lines exactly; the first one is kept.
constexpr float kSameError = 1e-12f, kSameGain = 1.0f + 2e-7f;

CHASKI_INLINE F32x16 below_zero(F32x16 x) { return if_above(splat(0.0f), x, x, splat(0.0f)); }
// 1 / x, and 0 where x is 0 or negligible.
CHASKI_INLINE F32x16 reciprocal(F32x16 x) {
    return if_above(size_of(x), splat(kNoSpread), splat(1.0f) / x, splat(0.0f));
}

// Whole numbers of 0 to 255 of 16 sub-blocks, as rows.
template <int kElements>
void to_bytes(const Lanes (&x)[kElements], uint8_t (&out)[kLanes * kElements]) {
    alignas(64) float rows[kLanes * kElements];
    to_rows(x, rows);
    for (int i = 0; i < kLanes * kElements; i += kLanes)
        store_bytes(out + i, truncate_to_i32(load_f32(rows + i)));
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
        to_lanes(x, count, x_);
        F32x16 low = load_f32(x_[0].v), high = low;
        for (const Lanes& each : x_) {
            low = min(low, load_f32(each.v));
            high = max(high, load_f32(each.v));
        }
        high_ = high;
        lowest_ = low_ = below_zero(low);
        scale_ = pivot_ = splat(0.0f);
        error_ = splat(INFINITY);
        if (is_weighted_) {
            to_lanes(weights, count, weight_);
            find_pivots();
        } else {
            weigh();
        }
        sum_up();
    }

    // Tries lines with these numbers of intervals up to the highest value: from the lowest value with
    // weights, which finds the line of values that lie on one, and else from the start of the best line.
    //
    // With weights, each line is computed before the error of the line before, which waits for divisions.
    void propose_spans(const float* intervals, int64_t count) {
        Line waiting{};
        for (int64_t step = 0; step < count; ++step) {
            const F32x16 start = is_weighted_ ? lowest_ : low_;
            Lanes* levels = level_[step % 2];
            const Line line = fit(reciprocal(high_ - start) * splat(intervals[step]), start, levels);
            if (step > 0 && is_weighted_) keep_better(waiting);
            if (!is_weighted_) keep_better(line);
            waiting = line;
        }
        if (is_weighted_ && count > 0) keep_better(waiting);
    }

    void propose_again() { keep_better(fit(reciprocal(scale_), low_, level_[0])); }

    void write(int64_t count, float* scales, float* minimums) const {
        store_f32(scales, scale_, static_cast<int>(count));
        store_f32(minimums, splat(0.0f) - low_, static_cast<int>(count));
    }

   private:
    void weigh() {
        F32x16 squares = splat(0.0f);
        for (const Lanes& each : x_) squares = squares + load_f32(each.v) * load_f32(each.v);
        Lanes mean;
        store_f32(mean.v, squares);
        for (float& each : mean.v) each = std::sqrt(each / kElements);
        for (int i = 0; i < kElements; ++i)
            store_f32(weight_[i].v, size_of(load_f32(x_[i].v)) + load_f32(mean.v));
    }

    void find_pivots() {
        F32x16 largest = splat(0.0f);
        for (int i = 0; i < kElements; ++i) {
            const F32x16 weight = load_f32(weight_[i].v);
            pivot_ = if_above(weight, largest, load_f32(x_[i].v), pivot_);
            largest = if_above(weight, largest, weight, largest);
        }
    }

    void sum_up() {
        F32x16 w = splat(0.0f), wx = w, wxx = w;
        for (int i = 0; i < kElements; ++i) {
            const F32x16 x = load_f32(x_[i].v) - pivot_, weight = load_f32(weight_[i].v),
                         product = weight * x;
            store_f32(from_pivot_[i].v, x);
            w = w + weight;
            wx = wx + product;
            wxx = wxx + product * x;
        }
        sum_w_ = w;
        sum_x_ = wx;
        sum_xx_ = wxx;
    }

    struct Line {
        F32x16 scale, low, error;
        const Lanes* levels;
    };

    // The line over the levels of the elements from `start` on, which go to `levels`.
    Line fit(F32x16 inverse, F32x16 start, Lanes* levels) const {
        const F32x16 from_start = -start, zero = splat(0.0f), top = splat(top_);
        const auto level_of = [&](F32x16 x) __attribute__((always_inline)) {
            return nearest((x + from_start) * inverse, zero, top);
        };
        const F32x16 at = is_weighted_ ? level_of(pivot_) : zero, from_at = -at;
        F32x16 l = zero, ll = zero, xl = zero;
        for (int i = 0; i < kElements; ++i) {
            const F32x16 whole = level_of(load_f32(x_[i].v)), level = whole + from_at;
            store_f32(levels[i].v, whole);
            const F32x16 weighted = load_f32(weight_[i].v) * level;
            l = l + weighted;
            ll = ll + weighted * level;
            xl = xl + weighted * load_f32(from_pivot_[i].v);
        }
        Line line = fit(l, ll, xl, at);
        line.levels = levels;
        return line;
    }

    // The weighted least-squares line over the levels. It goes through zero if it would start above zero, or
    // if all levels are the same. The sums are about the pivot, whose level is `at`. The error is that of
    // exact sums.
    CHASKI_INLINE Line fit(F32x16 l, F32x16 ll, F32x16 xl, F32x16 at) const {
        const F32x16 w = sum_w_, x = sum_x_, zero = splat(0.0f), two = splat(2.0f);
        const F32x16 determinant = w * ll - l * l;
        const F32x16 inverse =
            if_above(determinant, splat(kSameLevels) * w * ll, reciprocal(determinant), zero);
        const F32x16 slope = (w * xl - l * x) * inverse;
        const F32x16 start = ((ll * x - l * xl) * inverse + pivot_) - slope * at;
        const F32x16 product = (xl + at * x) + pivot_ * (l + at * w);
        const F32x16 through_zero = product * reciprocal(ll + at * (two * l + at * w));
        Line line;
        line.scale = if_above(start, zero, through_zero, if_above(inverse, zero, slope, through_zero));
        line.low = if_above(inverse, zero, below_zero(start), zero);
        const F32x16 slope_part = line.scale * (line.scale * ll - two * xl);
        const F32x16 low_part = line.low * (line.low * w + two * (line.scale * l - x));
        line.error = (sum_xx_ + slope_part) + low_part;
        return line;
    }

    // The sum of the elements' errors, which is more exact than the difference of large sums.
    CHASKI_INLINE F32x16 error_of(const Line& line) const {
        const F32x16 scale = -line.scale, low = -line.low;
        F32x16 error = splat(0.0f);
        for (int i = 0; i < kElements; ++i) {
            const F32x16 rest = (scale * load_f32(line.levels[i].v) + low) + load_f32(x_[i].v);
            error = error + load_f32(weight_[i].v) * (rest * rest);
        }
        return error;
    }

    CHASKI_INLINE void keep_better(const Line& line) {
        const F32x16 least = error_ - splat(kSameError) * sum_xx_;
        const F32x16 sum = is_weighted_ ? error_of(line) : line.error;
        const F32x16 error = if_above(line.scale, splat(0.0f), sum, splat(INFINITY));
        scale_ = if_above(least, error, line.scale, scale_);
        low_ = if_above(least, error, line.low, low_);
        error_ = if_above(least, error, error, error_);
    }

    bool is_weighted_;
    float top_;
    Lanes x_[kElements], weight_[kElements], from_pivot_[kElements];
    Lanes level_[2][kElements];  // of the lines that were fitted last
    // The element of largest weight. A weight may exceed the others a millionfold, and sums about that
    // element keep the small ones. 0 without weights.
    F32x16 pivot_;
    F32x16 lowest_, low_, high_, scale_, error_, sum_w_, sum_x_, sum_xx_;
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
    Lanes values[kElements], weight[kElements];
    to_lanes(x, count, values);
    if (weights != nullptr) to_lanes(weights, count, weight);
    F32x16 largest = splat(0.0f), extreme = largest, best = largest, gains = largest;
    for (int i = 0; i < kElements; ++i) {
        const F32x16 value = load_f32(values[i].v), size = size_of(value);
        if (weights == nullptr) store_f32(weight[i].v, value * value);
        extreme = if_above(size, largest, value, extreme);
        largest = if_above(size, largest, size, largest);
    }
    const F32x16 inverse = reciprocal(extreme);
    for (int64_t place = 0; place < num_places; ++place) {
        const F32x16 by = inverse * splat(places[place]);
        F32x16 ll = splat(0.0f), xl = ll;
        for (int i = 0; i < kElements; ++i) {
            const F32x16 value = load_f32(values[i].v), level = levels(value * by);
            const F32x16 weighted = load_f32(weight[i].v) * level;
            ll = ll + weighted * level;
            xl = xl + weighted * value;
        }
        const F32x16 scale = xl * reciprocal(ll), gain = scale * xl, least = splat(kSameGain) * gains;
        best = if_above(gain, least, scale, best);
        gains = if_above(gain, least, gain, gains);
    }
    store_f32(scales, best, static_cast<int>(count));
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
    Lanes values[kElements], weight[kElements];
    to_lanes(x.values + kElements * begin, count, values);
    to_lanes(x.weights + kElements * begin, count, weight);
    const F32x16 zero = splat(0.0f), tops = splat(top);
    F32x16 least = zero, scale = zero, minimum = zero, choice = zero;
    for (int64_t line = 0; line < lines.count * lines.count; ++line) {
        const auto own = [&](const float* all, int64_t number) {
            return load_f32(all + number * x.count + begin, static_cast<int>(count));
        };
        const F32x16 tried = own(lines.scales, line / lines.count), inverse = reciprocal(tried);
        const F32x16 start = own(lines.minimums, line % lines.count), down = -tried;
        F32x16 error = zero;
        for (int i = 0; i < kElements; ++i) {
            const F32x16 value = load_f32(values[i].v),
                         level = nearest((value + start) * inverse, zero, tops);
            const F32x16 rest = (down * level + start) + value;
            error = error + load_f32(weight[i].v) * (rest * rest);
        }
        if (line == 0) {
            scale = tried, minimum = start, least = error;
            continue;
        }
        scale = if_above(least, error, tried, scale);
        minimum = if_above(least, error, start, minimum);
        choice = if_above(least, error, splat(static_cast<float>(line)), choice);
        least = if_above(least, error, error, least);
    }
    const F32x16 inverse = reciprocal(scale);
    F32x16 w = zero, wx = w, l = w, ll = w, xl = w;
    Lanes levels[kElements];
    for (int i = 0; i < kElements; ++i) {
        const F32x16 share = load_f32(weight[i].v), value = load_f32(values[i].v);
        const F32x16 level = nearest((value + minimum) * inverse, zero, tops), weighted = share * level;
        store_f32(levels[i].v, level);
        w = w + share;
        wx = wx + share * value;
        l = l + weighted;
        ll = ll + weighted * level;
        xl = xl + weighted * value;
    }
    uint8_t bytes[kLanes * kElements], choices[kLanes];
    to_bytes(levels, bytes);
    __builtin_memcpy(out.levels + kElements * begin, bytes, static_cast<std::size_t>(kElements * count));
    store_bytes(choices, truncate_to_i32(choice));
    __builtin_memcpy(out.choices + begin, choices, static_cast<std::size_t>(count));
    const F32x16 sums[kLineSums] = {least, w, wx, l, ll, xl};
    for (int k = 0; k < kLineSums; ++k) {
        Lanes each;
        store_f32(each.v, sums[k]);
        for (int64_t r = 0; r < count; ++r) out.sums[kLineSums * (begin + r) + k] = each.v[r];
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
            search.propose_spans(intervals, num_intervals);
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
