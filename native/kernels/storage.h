// Reading and writing key/value storage as vectors of float32.
#pragma once

#include <cstring>
#include <type_traits>

#include "ops.h"
#include "panel.h"
#include "vector_math.h"

namespace chaski::CHASKI_ISA {

template <KVType T>
using StoredType = std::conditional_t<T == KVType::F32, float, std::uint16_t>;

template <KVType T>
CHASKI_INLINE F32x16 widen(const StoredType<T>* p) {
    if constexpr (T == KVType::F32) return load_f32(p);
    if constexpr (T == KVType::F16) return load_f16(p);
    if constexpr (T == KVType::BF16) return load_bf16(p);
}

template <KVType T>
CHASKI_INLINE void narrow(StoredType<T>* p, F32x16 v) {
    if constexpr (T == KVType::F32) store_f32(p, v);
    if constexpr (T == KVType::F16) store_f16(p, v);
    if constexpr (T == KVType::BF16) store_bf16(p, v);
}

// `count` elements, at most 16, from `first` on; the other lanes are zero.
template <KVType T>
CHASKI_INLINE F32x16 load_lanes(const std::byte* row, std::int64_t first, std::int64_t count) {
    const auto* from = reinterpret_cast<const StoredType<T>*>(row) + first;
    if (count >= kLanes) return widen<T>(from);
    StoredType<T> part[kLanes] = {};
    std::memcpy(part, from, count * sizeof(*part));
    return widen<T>(part);
}

// The first `count` lanes, at most 16.
template <KVType T>
CHASKI_INLINE void store_lanes(std::byte* row, std::int64_t first, std::int64_t count, F32x16 v) {
    auto* to = reinterpret_cast<StoredType<T>*>(row) + first;
    if (count >= kLanes) return narrow<T>(to, v);
    StoredType<T> part[kLanes];
    narrow<T>(part, v);
    std::memcpy(to, part, count * sizeof(*part));
}

// f(constant of the storage's type): one instance of the caller's loop for each type.
template <class F>
CHASKI_INLINE void with_type(KVType type, const F& f) {
    switch (type) {
        case KVType::F32:
            return f(std::integral_constant<KVType, KVType::F32>{});
        case KVType::F16:
            return f(std::integral_constant<KVType, KVType::F16>{});
        case KVType::BF16:
            return f(std::integral_constant<KVType, KVType::BF16>{});
    }
}

}  // namespace chaski::CHASKI_ISA
