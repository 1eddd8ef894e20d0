// Runs the same work on every instruction set of this machine and compares the output bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels.h"
#include "ops.h"

namespace chaski {

struct Table {
    std::string isa;
    const Kernels& kernels;
    const Ops& ops;
};

// The result of a piece of work.
using Bytes = std::vector<std::byte>;

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
    Bytes bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

class Comparison {
   public:
    // Tables that this machine can run; the first is the portable one, which defines the correct results.
    Comparison();

    // Runs work(table) for all tables. `what` names it when the bytes differ.
    template <class Work>
    void operator()(const std::string& what, const Work& work) {
        const Bytes expected = work(tables_[0]);
        remember(expected);
        for (std::size_t i = 1; i < tables_.size(); ++i)
            compare(what, tables_[i], expected, work(tables_[i]));
    }

    const std::vector<Table>& tables() const { return tables_; }
    int cases() const { return cases_; }
    int failures() const { return failures_; }
    // A digest of all that the portable table computed. It is equal on every processor.
    std::uint64_t digest() const { return digest_; }

   private:
    void compare(const std::string& what, const Table& table, const Bytes& expected, const Bytes& got);
    void remember(const Bytes& bytes);

    std::vector<Table> tables_;
    int cases_ = 0;
    int failures_ = 0;
    std::uint64_t digest_ = 0xcbf29ce484222325;  // FNV-1a
};

// Generates inputs without libraries, so that they are the same on every machine.
class Random {
   public:
    explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}

    std::uint32_t word() {
        state_ = state_ * 6364136223846793005 + 1442695040888963407;
        return static_cast<std::uint32_t>(state_ >> 32);
    }
    int below(int limit) { return static_cast<int>(word() % static_cast<std::uint32_t>(limit)); }
    // In [-size, size).
    float number(float size) { return (static_cast<float>(word() >> 8) * 0x1p-23f - 1.0f) * size; }

    std::vector<float> numbers(std::int64_t count, float size) {
        std::vector<float> values(count);
        for (float& value : values) value = number(size);
        return values;
    }

   private:
    std::uint64_t state_;
};

void compare_matmul(Comparison& compare);
void compare_ops(Comparison& compare);
void compare_attention(Comparison& compare);
void compare_gated_delta(Comparison& compare);
void compare_lora(Comparison& compare);

}  // namespace chaski
