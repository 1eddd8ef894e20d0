// The largest elements of each row, in descending order, equal ones by index; NaN is larger than any number.
// A block of threads has a part of a row, and then another one has what those of a row have found.
//
// Numbers are turned into keys that order like them as unsigned integers. Four passes, one for each byte of a
// key from the highest on, find the key of the last one that belongs to the result.
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
    float* found;   // [row][part][elements, indices][max_k]: the largest of each part
    float* y;       // [row][elements, indices][max_k]
};

constexpr int kBins = 256;

CHASKI_INLINE uint32_t key_of(float x) {
    if (magnitude_bits({x}).v > 0x7f800000) return 0xffffffffu;
    const auto bits = static_cast<uint32_t>(device::as_int(x + 0.0f));  // -0 and 0 are equal
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The shared memory of a block of threads.
struct Workspace {
    int32_t* counters;  // [bin]
    int32_t* numbers;   // bin, elements above it, elements in it, how many are chosen
    int32_t* chosen;    // [max_k]: positions
    int32_t* equal;     // [thread]

    CHASKI_INLINE explicit Workspace(int64_t max_k) {
        counters = reinterpret_cast<int32_t*>(device::shared());
        numbers = counters + kBins;
        chosen = numbers + 4;
        equal = chosen + max_k;
    }
};

// Finds the highest bin above which, with it, there are `wanted` elements; by the first warp.
CHASKI_INLINE void find_bin(const Workspace& w, int32_t wanted) {
    constexpr int kEach = kBins / 32;
    const auto own = static_cast<int>(threadIdx.x);
    int32_t sum = 0, above = 0;
    for (int i = 0; i < kEach; ++i) sum += w.counters[own * kEach + i];
#pragma unroll 1
    for (int i = 0; i < 32; ++i) {
        const int32_t other = device::value_of(sum, i);
        above += i > own ? other : 0;
    }
    if (above >= wanted || above + sum < wanted) return;
    int bin = own * kEach + kEach - 1;
    while (above + w.counters[bin] < wanted) above += w.counters[bin--];
    w.numbers[0] = bin;
    w.numbers[1] = above;
    w.numbers[2] = w.counters[bin];
}

// Finds the `count` largest of `size` elements, whose keys are key(i), and calls put(place, i) for each.
template <class Key, class Put>
CHASKI_INLINE void select(const Workspace& w, int32_t size, int32_t count, const Key& key, const Put& put) {
    const auto own = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    uint32_t last = 0, mask = 0;
    int32_t wanted = count;
#pragma unroll 1
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = own; i < kBins; i += threads) w.counters[i] = 0;
        if (own == 0) w.numbers[3] = 0;
        barrier();
        for (int i = own; i < size; i += threads) {
            const uint32_t k = key(i);
            if ((k & mask) == last) device::add_shared(w.counters + (k >> shift & 255), 1);
        }
        barrier();
        if (own < 32) find_bin(w, wanted);
        barrier();
        last |= static_cast<uint32_t>(w.numbers[0]) << shift;
        mask |= 255u << shift;
        wanted -= w.numbers[1];
        barrier();
    }
    // `wanted` of those with the last key belong to it: the first ones. Each thread has a stretch.
    const bool are_all = w.numbers[2] == wanted;
    const int each = (size + threads - 1) / threads, begin = own * each;
    const int end = begin + each < size ? begin + each : size;
    int32_t rank = 0;
    if (!are_all) {
        int32_t equal = 0;
        for (int i = begin; i < end; ++i) equal += key(i) == last;
        w.equal[own] = equal;
        barrier();
        for (int i = 0; i < own; ++i) rank += w.equal[i];
    }
    const auto choose = [&](int i) { w.chosen[device::add_shared(w.numbers + 3, 1)] = i; };
    if (are_all) {
        for (int i = own; i < size; i += threads) {
            if (key(i) >= last) choose(i);
        }
    } else {
        for (int i = begin; i < end; ++i) {
            const uint32_t k = key(i);
            if (k > last || (k == last && rank < wanted)) choose(i);
            rank += k == last;
        }
    }
    barrier();
    for (int j = own; j < count; j += threads) {
        const int32_t i = w.chosen[j];
        const uint32_t k = key(i);
        int place = 0;
#pragma unroll 4
        for (int other = 0; other < count; ++other) {
            const uint32_t rival = key(w.chosen[other]);
            place += rival > k || (rival == k && w.chosen[other] < i);
        }
        put(place, i);
    }
}

CHASKI_INLINE int32_t count_of(const TopK& a, int64_t row) {
    return a.counts[row] < a.width ? a.counts[row] : static_cast<int32_t>(a.width);
}

// A block of threads for each row and part. Where a part has too few elements, others have the index -1.
CHASKI_KERNEL(top_k_of_parts, TopK) {
    const int64_t row = blockIdx.x, begin = blockIdx.y * a.part;
    if (row >= *a.n) return;
    const int32_t wanted = count_of(a, row);
    if (wanted == 0) return;
    const auto size = static_cast<int32_t>(begin + a.part < a.width ? a.part : a.width - begin);
    const int32_t count = wanted < size ? wanted : size;
    const float* x = a.x + row * a.width + begin;
    float* values = a.found + (row * a.parts + blockIdx.y) * 2 * a.max_k;
    for (int j = count + threadIdx.x; j < wanted; j += blockDim.x) values[a.max_k + j] = -1.0f;
    select(
        Workspace(a.max_k), size, count, [&](int i) { return key_of(x[i]); },
        [&](int place, int i) {
            values[place] = x[i];
            values[a.max_k + place] = static_cast<float>(begin + i);
        });
}

// A block of threads for each row.
CHASKI_KERNEL(top_k, TopK) {
    const int64_t row = blockIdx.x;
    if (row >= *a.n) return;
    const int32_t count = count_of(a, row);
    if (count == 0) return;
    const float* found = a.found + row * a.parts * 2 * a.max_k;
    float* values = a.y + row * 2 * a.max_k;
    const auto place_of = [&](int i) { return i / count * 2 * a.max_k + i % count; };
    select(
        Workspace(a.max_k), static_cast<int32_t>(a.parts) * count, count,
        [&](int i) {
            const int64_t at = place_of(i);
            return found[at + a.max_k] < 0.0f ? 0u : key_of(found[at]);
        },
        [&](int place, int i) {
            const int64_t at = place_of(i);
            values[place] = found[at];
            values[a.max_k + place] = found[at + a.max_k];
        });
}

}  // namespace chaski::CHASKI_ISA
