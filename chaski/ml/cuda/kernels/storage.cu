// Writing, rotating and moving the cells of key/value storage of one type (CHASKI_STORED).
#include "storage.h"

namespace chaski::CHASKI_ISA {

constexpr DType kType = CHASKI_STORED;

// x(i) are the elements of one head, of which a group of 16 lanes writes all.
template <class Load>
CHASKI_INLINE void write_head(const Storage& storage, int64_t head, int64_t cell, const Load& x) {
    const StorageOf<kType> to{storage};
    if constexpr (kType == DType::I16) {
        float scale;
        const float factor = factor_of(storage.size, storage.in_panels == 0, x, &scale);
        for (int64_t i = lane(); i < storage.size; i += kLanes) {
            const int32_t q = factor == 0.0f ? 0 : device::round(x(i) * factor);
            *reinterpret_cast<int16_t*>(to.element(head, cell, i)) = static_cast<int16_t>(q);
        }
        if (lane() == 0) to.scales(head)[cell] = scale;
    } else {
        for (int64_t i = lane(); i < storage.size; i += kLanes) {
            store_element<kType>(to.element(head, cell, i), x(i));
        }
    }
}

CHASKI_INLINE float read_element(const Storage& storage, int64_t head, int64_t cell, int64_t i) {
    const StorageOf<kType> from{storage};
    const uint8_t* place = from.element(head, cell, i);
    if constexpr (kType == DType::I16) {
        return static_cast<float>(*reinterpret_cast<const int16_t*>(place)) * from.scales(head)[cell];
    } else {
        return load_element<kType>(place);
    }
}

struct Store {
    const float* x;  // [token][head][size]
    Count n;
    const int32_t* cells;
    Storage to;
};

CHASKI_KERNEL(store, Store) {
    const int64_t index = static_cast<int64_t>(blockIdx.x) * num_groups() + group();
    if (index >= *a.n * a.to.heads) return;
    const float* x = a.x + index * a.to.size;
    write_head(a.to, index % a.to.heads, a.cells[index / a.to.heads], [&](int64_t i) { return x[i]; });
}

struct RotateCells {
    const int32_t* cells;
    Count n;
    const float* table;  // [token][2][pairs]
    int64_t pairs;
    int64_t neox;
    Storage to;
};

// Shared memory: a head for each group.
CHASKI_KERNEL(rotate_cells, RotateCells) {
    const int64_t index = static_cast<int64_t>(blockIdx.x) * num_groups() + group();
    float* turned = reinterpret_cast<float*>(device::shared()) + group() * a.to.size;
    const bool exists = index < *a.n * a.to.heads;
    const int64_t token = exists ? index / a.to.heads : 0, head = index % a.to.heads;
    const int64_t cell = exists ? a.cells[token] : 0;
    const float* cos = a.table + token * 2 * a.pairs;
    const float* sin = cos + a.pairs;
    const int64_t step = a.neox ? 1 : 2, apart = a.neox ? a.pairs : 1;
    if (exists) {
        for (int64_t i = lane(); i < a.to.size - a.pairs; i += kLanes) {
            if (i >= a.pairs) {
                turned[i + a.pairs] = read_element(a.to, head, cell, i + a.pairs);
                continue;
            }
            const float first = read_element(a.to, head, cell, step * i);
            const float second = read_element(a.to, head, cell, step * i + apart);
            turned[step * i] = first * cos[i] - second * sin[i];
            turned[step * i + apart] = first * sin[i] + second * cos[i];
        }
    }
    barrier();
    if (exists) write_head(a.to, head, cell, [&](int64_t i) { return turned[i]; });
}

// Cells and blocks of bytes that the host keeps: [head][place][bytes of a row], and behind these the scales
// [head][place]. The rows of a panel are taken apart.
struct MoveCells {
    const int32_t* cells;
    int64_t count;
    int64_t first;
    int64_t room;
    uint8_t* block;
    int64_t is_write;
    Storage storage;
};

CHASKI_KERNEL(move_cells, MoveCells) {
    constexpr int kUnit = kType == DType::I16 ? 2 : StorageOf<kType>::kBytes;
    const int64_t size = a.storage.size, i = thread(), cell = i / size % a.count, head = i / size / a.count;
    if (head >= a.storage.heads) return;
    const StorageOf<kType> stored{a.storage};
    const int64_t place = head * a.room + a.first + cell, element = i % size;
    uint8_t* kept = a.block + (place * size + element) * kUnit;
    uint8_t* own = stored.element(head, a.cells[cell], element);
    for (int b = 0; b < kUnit; ++b) {
        if (a.is_write) own[b] = kept[b];
        else kept[b] = own[b];
    }
    if (kType != DType::I16 || element != 0) return;
    auto* scales = reinterpret_cast<float*>(a.block + a.storage.heads * a.room * size * kUnit);
    float* scale = stored.scales(head) + a.cells[cell];
    if (a.is_write) *scale = scales[place];
    else scales[place] = *scale;
}

}  // namespace chaski::CHASKI_ISA
