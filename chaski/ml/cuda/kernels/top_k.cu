// The largest elements of each row, in descending order, equal ones by index. A block of threads has a row.
//
// Numbers are turned into keys that order like them as unsigned integers. Four passes over the row, one for
// each byte of a key from the highest on, find the key of the last one that belongs to the result.
#include "kernel.h"

namespace chaski::CHASKI_ISA {

struct TopK {
    const float* x;
    Count n;
    int64_t width;
    const int32_t* counts;
    int64_t max_k;
    float* y;  // [row][2][max_k]: elements, indices
};

CHASKI_INLINE bool is_nan(float x) { return magnitude_bits({x}).v > 0x7f800000; }

CHASKI_INLINE uint32_t key_of(float x) {
    const auto bits = static_cast<uint32_t>(device::as_int(x + 0.0f));  // -0 and 0 are equal
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Shared memory: 256 counters, 8 numbers, and the chosen elements.
CHASKI_KERNEL(top_k, TopK) {
    const int64_t row = blockIdx.x;
    if (row >= *a.n) return;
    const int32_t count = a.counts[row] < a.width ? a.counts[row] : static_cast<int32_t>(a.width);
    if (count == 0) return;
    const float* x = a.x + row * a.width;
    auto* counters = reinterpret_cast<int32_t*>(device::shared());
    int32_t* numbers = counters + 256;  // taken, equal, first NaN, bin, above
    int32_t* chosen = numbers + 8;      // indices
    const auto own = static_cast<int>(threadIdx.x);
    if (own == 0) numbers[2] = 0x7fffffff;
    uint32_t prefix = 0, mask = 0;
    int32_t wanted = count;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = own; i < 256; i += blockDim.x) counters[i] = 0;
        barrier();
        for (int64_t i = own; i < a.width; i += blockDim.x) {
            if (shift == 24 && is_nan(x[i])) device::lower_shared(numbers + 2, static_cast<int32_t>(i));
            const uint32_t key = key_of(x[i]);
            if ((key & mask) == prefix) device::add_shared(counters + (key >> shift & 255), 1);
        }
        barrier();
        if (own == 0) {
            int32_t above = 0;
            int bin = 255;
            while (above + counters[bin] < wanted) above += counters[bin--];
            numbers[3] = bin;
            numbers[4] = above;
            numbers[0] = numbers[1] = 0;
        }
        barrier();
        prefix |= static_cast<uint32_t>(numbers[3]) << shift;
        mask |= 255u << shift;
        wanted -= numbers[4];
        barrier();
    }
    float* values = a.y + row * 2 * a.max_k;
    float* indices = values + a.max_k;
    if (numbers[2] != 0x7fffffff) {
        if (own == 0) {
            values[0] = x[numbers[2]];
            indices[0] = static_cast<float>(numbers[2]);
        }
        return;
    }
    // `wanted` of those with that key belong to it: the first ones. Each thread has a stretch of the row.
    const int64_t each = (a.width + blockDim.x - 1) / blockDim.x, begin = own * each;
    const int64_t end = begin + each < a.width ? begin + each : a.width;
    int32_t equal = 0;
    for (int64_t i = begin; i < end; ++i) equal += key_of(x[i]) == prefix;
    int32_t* before = chosen + count;
    before[own] = equal;
    barrier();
    if (own == 0) {
        int32_t sum = 0;
        for (int i = 0; i < static_cast<int>(blockDim.x); ++i) {
            const int32_t mine = before[i];
            before[i] = sum;
            sum += mine;
        }
    }
    barrier();
    int32_t rank = before[own];
    for (int64_t i = begin; i < end; ++i) {
        const uint32_t key = key_of(x[i]);
        const bool is_equal = key == prefix;
        if (key > prefix || (is_equal && rank < wanted)) {
            chosen[device::add_shared(numbers, 1)] = static_cast<int32_t>(i);
        }
        rank += is_equal;
    }
    barrier();
    for (int j = own; j < count; j += blockDim.x) {
        const int32_t index = chosen[j];
        const uint32_t key = key_of(x[index]);
        int place = 0;
        for (int other = 0; other < count; ++other) {
            const uint32_t rival = key_of(x[chosen[other]]);
            place += rival > key || (rival == key && chosen[other] < index);
        }
        values[place] = x[index];
        indices[place] = static_cast<float>(index);
    }
}

}  // namespace chaski::CHASKI_ISA
