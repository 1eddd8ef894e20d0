// Writes the cells of keys and values (CHASKI_KEYS, CHASKI_VALUES), and rotates and moves cells of one type
// (CHASKI_STORED, whose heads are rotated in blocks of CHASKI_ROTATED elements if it is defined).
#include "rotation.h"
#include "store.h"

namespace chaski::CHASKI_ISA {

template <DType T>
CHASKI_INLINE float read_element(const Storage& storage, int64_t head, int64_t cell, int64_t i) {
    const StorageOf<T> from{storage};
    if constexpr (StorageOf<T>::kInBlocks) return from.decoded(head, cell, i);
    const uint8_t* place = from.element(head, cell, i);
    if constexpr (T == DType::I16) {
        return static_cast<float>(*reinterpret_cast<const int16_t*>(place)) * from.scales(head)[cell];
    } else {
        return load_element<T>(place);
    }
}

#if defined(CHASKI_VALUES)

// Heads of tokens, [token][head][element]: CHASKI_SIZE elements of queries and keys, and CHASKI_VALUE_SIZE of
// values.
struct Heads {
    const float* x;
    int64_t heads;
};

// Queries to turn, keys to turn and store, and values to store. Operands without heads are absent.
struct Store {
    Count n;
    const int32_t* cells;
    const float* angles;  // [token][2][pairs]
    Heads queries;
    float* turned_queries;
    Heads keys;
    Storage to_keys;
    Heads values;
    Storage to_values;
};

// There is a warp for each two heads of a token. Heads that may not exist are read safely, because the memory
// belongs to the plan.
CHASKI_KERNEL(store, Store) {
    constexpr int kSize = CHASKI_SIZE, kValueSize = CHASKI_VALUE_SIZE;
    const int64_t token = blockIdx.x, n = *a.n, cell = a.cells[token];
    int pair = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) / 32;
    const auto find = [&](const Heads& heads) {  // whether this warp has two of these heads
        const int pairs = static_cast<int>(heads.heads + 1) / 2;
        if (pair < pairs) return true;
        pair -= pairs;
        return false;
    };
    const auto head_of = [&](const Heads& heads) {
        const int head = 2 * pair + group() % 2, last = static_cast<int>(heads.heads) - 1;
        return head < last ? head : last;
    };
    const auto exists = [&](const Heads& heads) { return token < n && 2 * pair + group() % 2 < heads.heads; };
    const float* angles = a.angles + token * 2 * kPairs;
    if (find(a.queries)) {
        const int64_t at = (token * a.queries.heads + head_of(a.queries)) * kSize;
        const OwnElements<kSize> x(a.queries.x + at, angles);
        for (int i = 0; i < x.kCount && exists(a.queries); ++i) {
            if (x.exists(i)) a.turned_queries[at + x.number(i)] = x.v[i];
        }
    } else if (find(a.keys)) {
        const int head = head_of(a.keys);
        const OwnElements<kSize> x(a.keys.x + (token * a.keys.heads + head) * kSize, angles);
        write_head<CHASKI_KEYS>(sized<kSize>(a.to_keys, true), head, cell, exists(a.keys), x);
    } else if (find(a.values)) {
        const int head = head_of(a.values);
        const OwnElements<kValueSize> x(a.values.x + (token * a.values.heads + head) * kValueSize);
        write_head<CHASKI_VALUES>(sized<kValueSize>(a.to_values, false), head, cell, exists(a.values), x);
    }
}

#else

constexpr DType kType = CHASKI_STORED;

struct RotateCells {
    const int32_t* cells;
    Count n;
    const float* table;  // [token][2][pairs]
    int64_t pairs;
    int64_t neox;
    Storage to;
};

// Rotates a head in shared memory. The rotation is its own inverse.
CHASKI_INLINE void rotate_blocks(float* head, int64_t size) {
#if defined(CHASKI_ROTATED)
    for (int64_t first = 0; first < size; first += CHASKI_ROTATED) {
        rotate_block<CHASKI_ROTATED>(head + first, true, head + first);
    }
    barrier();
#endif
}

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
    for (int64_t i = lane(); i < a.to.size; i += kLanes) turned[i] = read_element<kType>(a.to, head, cell, i);
    barrier();
    rotate_blocks(turned, a.to.size);
    for (int64_t i = lane(); i < a.pairs; i += kLanes) {
        const float first = turned[step * i], second = turned[step * i + apart];
        turned[step * i] = first * cos[i] - second * sin[i];
        turned[step * i + apart] = first * sin[i] + second * cos[i];
    }
    barrier();
    rotate_blocks(turned, a.to.size);
    write_head<kType>(a.to, head, cell, exists, [&](int64_t i) { return turned[i]; });
}

// Copies between cells and the blocks of bytes that the host keeps: [head][place][bytes of a row], followed
// by the scales [head][place]. The rows of a panel are separated.
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
    constexpr bool kInBlocks = StorageOf<kType>::kInBlocks;
    constexpr int kUnit = kType == DType::I16 ? 2 : kInBlocks ? 1 : StorageOf<kType>::kBytes;
    const int64_t size = kInBlocks ? row_bytes(kType, a.storage.size) : a.storage.size;  // units of a row
    const int64_t i = thread(), cell = i / size % a.count, head = i / size / a.count;
    if (head >= a.storage.heads) return;
    const StorageOf<kType> stored{a.storage};
    const int64_t place = head * a.room + a.first + cell, element = i % size;
    uint8_t* kept = a.block + (place * size + element) * kUnit;
    uint8_t* own = kInBlocks ? stored.byte_of_row(head, a.cells[cell], element)
                             : stored.element(head, a.cells[cell], element);
    for (int b = 0; b < kUnit; ++b) {
        if (a.is_write)
            own[b] = kept[b];
        else
            kept[b] = own[b];
    }
    if (kType != DType::I16 || element != 0) return;
    auto* scales = reinterpret_cast<float*>(a.block + a.storage.heads * a.room * size * kUnit);
    float* scale = stored.scales(head) + a.cells[cell];
    if (a.is_write)
        *scale = scales[place];
    else
        scales[place] = *scale;
}

#endif

}  // namespace chaski::CHASKI_ISA
