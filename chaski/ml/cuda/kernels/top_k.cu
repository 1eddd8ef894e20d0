// The largest elements of each row, in descending order, equal ones by index; NaN is larger than any number.
// A thread block searches a part of a row, and then another block searches the results of all parts of the
// row.
//
// A number and its index are combined into one key, which has the same order; 0 stands for no element. The
// elements of a block are divided among groups. If `count` elements are wanted, the threshold is the count-th
// largest of the groups' maxima. Only elements that are not below it can be wanted. They are few, and their
// places are counted.
#include "kernel.h"

namespace chaski::CHASKI_ISA {

struct TopK {
    const float* x;
    Count n;
    int64_t width;
    const int32_t* counts;  // of each row
    int64_t max_k;
    int64_t part;   // elements of a part
    int64_t parts;  // of a row
    float* found;   // [row][elements, indices][parts · max_k]: the largest of all parts, part by part
    float* y;       // [row][elements, indices][max_k]
};

using Key = uint64_t;

constexpr int kThreads = 256, kGroups = kThreads / 2;
constexpr int kMostCandidates = 2048;
constexpr int kAhead = 16;  // elements that a thread reads at a time

CHASKI_INLINE Key key_of(float x, int index) {
    const int32_t bits = device::as_int(x + 0.0f);  // -0 and 0 are equal
    uint32_t high = static_cast<uint32_t>(bits) ^ (static_cast<uint32_t>(bits >> 31) | 0x80000000u);
    high = magnitude_bits({x}).v > 0x7f800000 ? 0xffffffffu : high;
    return static_cast<Key>(high) << 32 | ~static_cast<uint32_t>(index);
}
CHASKI_INLINE int index_of(Key key) { return static_cast<int>(~static_cast<uint32_t>(key)); }

// The shared memory of a thread block. The lowering computes the same number of bytes.
struct Workspace {
    Key candidates[kMostCandidates];
    Key largest[kGroups];
    Key threshold;
    Key last;  // of the found keys
    int32_t num_candidates;
};

struct Elements {
    const float* x;
    int size;
};

// Calls f(key) for all keys of this thread that are at most `limit`.
template <class F>
CHASKI_INLINE void for_own(const Elements& elements, Key limit, const F& f) {
#pragma unroll 1
    for (int first = static_cast<int>(threadIdx.x); first < elements.size; first += kAhead * kThreads) {
        float x[kAhead];
        for (int j = 0; j < kAhead; ++j) {
            const int i = first + j * kThreads;
            x[j] = i < elements.size ? elements.x[i] : 0.0f;
        }
        for (int j = 0; j < kAhead; ++j) {
            const int i = first + j * kThreads;
            const Key key = key_of(x[j], i);
            if (i < elements.size && key <= limit) f(key);
        }
    }
}

// The number of `count` keys that are above one, in four sums that do not wait for each other.
CHASKI_INLINE int num_above(const Key* keys, int count, Key own) {
    int above[4] = {};
#pragma unroll 4
    for (int i = 0; i < count; i += 4) {
        for (int j = 0; j < 4; ++j) above[j] += i + j < count && keys[i + j] > own;
    }
    return above[0] + above[1] + above[2] + above[3];
}

// Finds the `count` largest of elements, and calls put(place, i) for each.
template <class Put>
CHASKI_INLINE void select(const Elements& elements, int count, const Put& put) {
    auto& w = *reinterpret_cast<Workspace*>(device::shared());
    const auto own = static_cast<int>(threadIdx.x);
    // If the largest key of a group is above the threshold, all its other keys may be as well.
    const auto of_group = static_cast<uint32_t>(elements.size + kGroups - 1) / kGroups;
    const auto most = static_cast<int>(kMostCandidates / of_group);
    const int each = most < 1 ? 1 : most < kGroups ? most : kGroups;
    Key limit = ~static_cast<Key>(0);
#pragma unroll 1
    for (int first = 0; first < count; first += each) {
        const int wanted = count - first < each ? count - first : each;
        Key largest = 0;
        for_own(elements, limit, [&](Key k) { largest = k > largest ? k : largest; });
        const Key other = device::from_thread(largest, 1);
        if (own % 2 == 0) w.largest[own / 2] = other > largest ? other : largest;
        if (own == 0) {
            w.threshold = 1;
            w.num_candidates = 0;
        }
        barrier();
        if (own < kGroups) {
            const Key group = w.largest[own];
            if (group != 0 && num_above(w.largest, kGroups, group) == wanted - 1) w.threshold = group;
        }
        barrier();
        const Key threshold = w.threshold;
        if (largest >= threshold) {
            for_own(elements, limit, [&](Key k) {
                if (k >= threshold) w.candidates[device::add_shared(&w.num_candidates, 1)] = k;
            });
        }
        barrier();
        for (int j = own; j < w.num_candidates; j += kThreads) {
            const Key k = w.candidates[j];
            const int place = num_above(w.candidates, w.num_candidates, k);
            if (place < wanted) put(first + place, index_of(k));
            if (place == wanted - 1) w.last = k;
        }
        barrier();
        limit = w.last - 1;
    }
}

CHASKI_INLINE int32_t count_of(const TopK& a, int64_t row) {
    return a.counts[row] < a.width ? a.counts[row] : static_cast<int32_t>(a.width);
}

// There is a thread block for each row and part.
CHASKI_KERNEL(top_k_of_parts, TopK) {
    const int64_t row = blockIdx.x, begin = blockIdx.y * a.part, n = *a.n;
    const int32_t wanted = count_of(a, row);
    if (row >= n || wanted == 0) return;
    const auto size = static_cast<int32_t>(begin + a.part < a.width ? a.part : a.width - begin);
    const Elements part{a.x + row * a.width + begin, size};
    float* values = a.found + row * 2 * a.parts * a.max_k + blockIdx.y * wanted;
    float* indices = values + a.parts * a.max_k;
    select(part, wanted < size ? wanted : size, [&](int place, int i) {
        values[place] = part.x[i];
        indices[place] = static_cast<float>(begin + i);
    });
}

// There is a thread block for each row. All parts except the last have found as many elements as are wanted.
CHASKI_KERNEL(top_k, TopK) {
    const int64_t row = blockIdx.x, n = *a.n;
    const int32_t count = count_of(a, row);
    if (row >= n || count == 0) return;
    const auto before = static_cast<int>(a.parts - 1) * count;
    const auto rest = static_cast<int>(a.width - (a.parts - 1) * a.part);
    const Elements found{a.found + row * 2 * a.parts * a.max_k, before + (rest < count ? rest : count)};
    const float* indices = found.x + a.parts * a.max_k;
    float* values = a.y + row * 2 * a.max_k;
    select(found, count, [&](int place, int i) {
        values[place] = found.x[i];
        values[a.max_k + place] = indices[i];
    });
}

}  // namespace chaski::CHASKI_ISA
