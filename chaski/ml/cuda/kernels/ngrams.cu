// Embeddings of n-grams, whose rows a hash of a token and of those before it chooses: see steps/ngrams.h.
#include "kernel.h"

namespace chaski::CHASKI_ISA {

struct Numbers {
    const int32_t* tokens;
    Count n;
    float* y;
};

CHASKI_KERNEL(token_numbers, Numbers) {
    const int64_t i = thread();
    if (i < *a.n) a.y[i] = static_cast<float>(a.tokens[i] + 1);
}

struct Hash {
    const int32_t* tokens;
    Count n;
    const float* before;  // [token][width]
    int64_t width;
    const uint64_t* multipliers;
    int64_t count;  // of multipliers
    int64_t size;
    int64_t offset;
    int64_t separator;
    int32_t* y;
};

CHASKI_KERNEL(hash_ngrams, Hash) {
    const int64_t i = thread();
    if (i >= *a.n) return;
    const auto separator = static_cast<int32_t>(a.separator);
    uint64_t mixed = static_cast<uint64_t>(static_cast<int64_t>(a.tokens[i])) * a.multipliers[0];
    bool is_near = true;
    for (int64_t j = 1; j < a.count; ++j) {
        const int32_t token = static_cast<int32_t>(a.before[i * a.width + j - 1]) - 1;
        is_near = is_near && token >= 0 && token != separator;
        mixed ^= static_cast<uint64_t>(static_cast<int64_t>(is_near ? token : separator)) * a.multipliers[j];
    }
    a.y[i] = static_cast<int32_t>(a.offset + static_cast<int64_t>(mixed % static_cast<uint64_t>(a.size)));
}

struct Dots {
    const float* a;  // [row][size]
    const float* b;
    Count n;
    int64_t heads;
    int64_t size;
    float factor;
    float least;
    float* y;
};

// There is a thread for each head.
CHASKI_KERNEL(rooted_dots, Dots) {
    const int64_t i = thread();
    if (i >= *a.n * a.heads) return;
    float sum = 0.0f;
    for (int64_t j = i * a.size; j < (i + 1) * a.size; ++j) sum += a.a[j] * a.b[j];
    sum *= a.factor;
    const float size = sum < 0.0f ? -sum : sum;
    const float root = device::square_root(size < a.least ? a.least : size);
    a.y[i] = sum == 0.0f ? 0.0f : sum < 0.0f ? -root : root;
}

}  // namespace chaski::CHASKI_ISA
