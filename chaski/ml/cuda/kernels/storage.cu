// Writing the cells of keys and values (CHASKI_KEYS, CHASKI_VALUES), and rotating and moving those of one
// type (CHASKI_STORED).
#include "storage.h"

namespace chaski::CHASKI_ISA {

// x(i) are the elements of one head, of which a group of 16 lanes writes all.
template <DType T, class Load>
CHASKI_INLINE void write_head(const Storage& storage, int64_t head, int64_t cell, const Load& x) {
    const StorageOf<T> to{storage};
    if constexpr (T == DType::I16) {
        float scale;
        const float factor = factor_of(storage.size, storage.in_panels == 0, x, &scale);
        for (int64_t i = lane(); i < storage.size; i += kLanes) {
            const int32_t q = factor == 0.0f ? 0 : device::round(x(i) * factor);
            *reinterpret_cast<int16_t*>(to.element(head, cell, i)) = static_cast<int16_t>(q);
        }
        if (lane() == 0) to.scales(head)[cell] = scale;
    } else if constexpr (StorageOf<T>::kInBlocks) {
        for (int64_t first = 0; first < storage.size; first += 32) {
            const Encoded block = T == DType::Q8_0 ? encode_q8_0(x, first) : encode_q4_0(x, first);
            const int64_t at = first / 32 * StorageOf<T>::kBlockBytes;
            *to.byte_of_row(head, cell, at + 2 + lane()) = to.flipped(block.low);
            if (T == DType::Q8_0) *to.byte_of_row(head, cell, at + 18 + lane()) = to.flipped(block.high);
            const uint16_t half = device::narrow_f16(block.d);
            if (lane() < 2) *to.byte_of_row(head, cell, at + lane()) = half >> 8 * lane() & 255;
        }
    } else {
        for (int64_t i = lane(); i < storage.size; i += kLanes) {
            store_element<T>(to.element(head, cell, i), x(i));
        }
    }
}

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

// The angles of tokens, [token][2][pairs]; no table turns nothing.
struct Angles {
    const float* table;
    int64_t pairs;
    int64_t neox;

    // Element i of a head that is turned by the angles of a token.
    template <class Load>
    CHASKI_INLINE float turned(int64_t token, int64_t i, const Load& x) const {
        if (table == nullptr || i >= 2 * pairs) return x(i);
        const int64_t j = neox ? i % pairs : i / 2;
        const bool is_first = neox ? i < pairs : i % 2 == 0;
        const int64_t step = neox ? 1 : 2, apart = neox ? pairs : 1;
        const float cos = table[token * 2 * pairs + j], sin = table[(token * 2 + 1) * pairs + j];
        const float first = x(step * j), second = x(step * j + apart);
        return is_first ? first * cos - second * sin : first * sin + second * cos;
    }
};

// Heads of tokens: [token][head][size].
struct Heads {
    const float* x;
    int64_t heads;
    int64_t size;
};

// Queries that are turned, and keys, turned too, and values that are stored. Those without heads are none.
struct Store {
    Count n;
    const int32_t* cells;
    Angles angles;
    Heads queries;
    float* turned_queries;
    Heads keys;
    Storage to_keys;
    Heads values;
    Storage to_values;
};

// The elements of a head that a lane has: every 16th.
template <int kMost>
struct OwnElements {
    float v[kMost];

    template <class Load>
    CHASKI_INLINE OwnElements(int64_t size, const Load& x) {
        for (int i = 0; i < kMost; ++i) v[i] = i * kLanes + lane() < size ? x(i * kLanes + lane()) : 0.0f;
    }
    // Element number `i` of the head, one of this lane's.
    CHASKI_INLINE float operator()(int64_t i) const {
        float found = 0.0f;
        for (int j = 0; j < kMost; ++j) found = i / kLanes == j ? v[j] : found;
        return found;
    }
};

// kMost: elements of the longest head for each lane.
template <DType K, DType V, int kMost>
CHASKI_INLINE void store_heads(const Store& a) {
    const int64_t index = static_cast<int64_t>(blockIdx.x) * num_groups() + group();
    const auto each = static_cast<int>(a.queries.heads + a.keys.heads + a.values.heads);
    const auto token = static_cast<int>(index / each);
    if (token >= *a.n) return;
    int64_t head = index % each;
    const auto row_of = [&](const Heads& heads) {
        const float* x = heads.x + (token * heads.heads + head) * heads.size;
        return [x](int64_t i) { return x[i]; };
    };
    const auto turned = [&](const Heads& heads) {
        const auto x = row_of(heads);
        return OwnElements<kMost>(heads.size, [&](int64_t i) { return a.angles.turned(token, i, x); });
    };
    if (head < a.queries.heads) {
        float* y = a.turned_queries + (token * a.queries.heads + head) * a.queries.size;
        const auto x = turned(a.queries);
        for (int i = 0; i < kMost; ++i) {
            if (i * kLanes + lane() < a.queries.size) y[i * kLanes + lane()] = x.v[i];
        }
        return;
    }
    head -= a.queries.heads;
    if (head < a.keys.heads) {
        write_head<K>(a.to_keys, head, a.cells[token], turned(a.keys));
        return;
    }
    head -= a.keys.heads;
    write_head<V>(a.to_values, head, a.cells[token], OwnElements<kMost>(a.values.size, row_of(a.values)));
}

#if defined(CHASKI_VALUES)
CHASKI_KERNEL(store, Store) { store_heads<CHASKI_KEYS, CHASKI_VALUES, CHASKI_EACH>(a); }
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
                turned[i + a.pairs] = read_element<kType>(a.to, head, cell, i + a.pairs);
                continue;
            }
            const float first = read_element<kType>(a.to, head, cell, step * i);
            const float second = read_element<kType>(a.to, head, cell, step * i + apart);
            turned[step * i] = first * cos[i] - second * sin[i];
            turned[step * i + apart] = first * sin[i] + second * cos[i];
        }
    }
    barrier();
    if (exists) write_head<kType>(a.to, head, cell, [&](int64_t i) { return turned[i]; });
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
