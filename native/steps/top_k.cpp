#include "top_k.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace chaski {

struct TopKStep::Element {
    float value;
    std::int32_t index;

    // Sorts in descending order, equal elements by index.
    static bool precedes(const Element& a, const Element& b) {
        return a.value > b.value || (a.value == b.value && a.index < b.index);
    }
};

// The best `capacity` of the offered elements, as a heap with the worst of them at the front.
class TopKStep::Best {
   public:
    Best(Element* elements, std::int64_t capacity) : elements_(elements), capacity_(capacity) {}

    void offer(Element e) {
        if (size_ == capacity_) {
            if (!Element::precedes(e, elements_[0])) return;
            std::pop_heap(elements_, elements_ + size_--, Element::precedes);
        }
        elements_[size_++] = e;
        std::push_heap(elements_, elements_ + size_, Element::precedes);
    }
    void sort() { std::sort_heap(elements_, elements_ + size_, Element::precedes); }
    std::int64_t size() const { return size_; }
    std::int64_t capacity() const { return capacity_; }

   private:
    Element* elements_;
    const std::int64_t capacity_;
    std::int64_t size_ = 0;
};

namespace {

// The count-th largest of the lanes' maxima. At least `count` elements are not below it.
float lower_bound_of(const float* maxima, std::int64_t lanes, std::int64_t count, float* room) {
    if (count == 1) return *std::max_element(maxima, maxima + lanes);
    if (count > lanes) return -std::numeric_limits<float>::infinity();
    std::copy_n(maxima, lanes, room);
    std::nth_element(room, room + count - 1, room + lanes, std::greater<>());
    return room[count - 1];
}

}  // namespace

// The time to find the bound grows with the number of lanes, and the time to search the lanes that reach it
// grows with their length. The sum is smallest near sqrt(width / 8).
Blocks::Blocks(std::int64_t width) : width(width) {
    std::int64_t length = 4;
    while (length * length * 8 * 2 < width) length *= 2;
    size = length * kLanes;
    count = (width + size - 1) / size;
}

void MaximaStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte*) const {
    for (std::int64_t i = begin; i < end; ++i) {
        std::int64_t row = i / blocks_.count, block = i % blocks_.count;
        if (counts_[row] == 0) continue;
        std::int64_t first = block * blocks_.size;
        ops_.lane_maxima(x_ + row * blocks_.width + first, blocks_.end(block) - first, maxima_ + i * kLanes);
    }
}

std::size_t TopKStep::scratch_bytes() const {
    return align_up(max_k_ * sizeof(Element)) + blocks_.lanes() * sizeof(float);
}

void TopKStep::run(const Sizes&, std::int64_t begin, std::int64_t end, std::byte* scratch) const {
    auto* elements = reinterpret_cast<Element*>(scratch);
    auto* room = reinterpret_cast<float*>(scratch + align_up(max_k_ * sizeof(Element)));
    for (std::int64_t i = begin; i < end; ++i) {
        if (counts_[i] == 0) continue;
        const float* x = x_ + i * blocks_.width;
        const float* maxima = maxima_ + i * blocks_.lanes();
        Best best(elements, std::min<std::int64_t>(counts_[i], blocks_.width));
        if (!find_nan(x, maxima, best)) find_top_k(x, maxima, room, best);
        best.sort();
        float* y = y_ + i * 2 * max_k_;
        for (std::int64_t j = 0; j < best.size(); ++j) {
            y[j] = elements[j].value;
            y[max_k_ + j] = static_cast<float>(elements[j].index);
        }
    }
}

bool TopKStep::find_nan(const float* x, const float* maxima, Best& best) const {
    const auto is_nan = [](float v) { return std::isnan(v); };
    const float* lane = std::find_if(maxima, maxima + blocks_.lanes(), is_nan);
    if (lane == maxima + blocks_.lanes()) return false;
    std::int64_t block = (lane - maxima) / kLanes;
    const float* first = std::find_if(x + block * blocks_.size, x + blocks_.end(block), is_nan);
    best.offer({*first, static_cast<std::int32_t>(first - x)});
    return true;
}

void TopKStep::find_top_k(const float* x, const float* maxima, float* room, Best& best) const {
    float bound = lower_bound_of(maxima, blocks_.lanes(), best.capacity(), room);
    for (std::int64_t lane = 0; lane < blocks_.lanes(); ++lane) {
        if (maxima[lane] < bound) continue;
        std::int64_t block = lane / kLanes;
        for (std::int64_t j = block * blocks_.size + lane % kLanes; j < blocks_.end(block); j += kLanes) {
            if (x[j] >= bound) best.offer({x[j], static_cast<std::int32_t>(j)});
        }
    }
}

}  // namespace chaski
