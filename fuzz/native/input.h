// Bytes of the fuzzer as numbers, and the comparison of results.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace chaski {

// Takes numbers from the beginning of an input. After its end, all bytes are zero.
class Input {
   public:
    Input(const std::uint8_t* data, std::size_t size) : left_(data, size) {}

    void fill(void* to, std::size_t bytes) {
        const std::size_t count = bytes < left_.size() ? bytes : left_.size();
        if (count > 0) std::memcpy(to, left_.data(), count);
        std::memset(static_cast<std::uint8_t*>(to) + count, 0, bytes - count);
        left_ = left_.subspan(count);
    }
    std::uint8_t byte() {
        std::uint8_t value;
        fill(&value, 1);
        return value;
    }
    // From 0 to limit - 1.
    std::int64_t below(std::int64_t limit) {
        std::uint16_t value;
        fill(&value, sizeof value);
        return value % limit;
    }
    // Any bits, so also NaNs, infinities and subnormal numbers. The input is repeated.
    std::vector<float> floats(std::int64_t count) {
        std::vector<float> values(count);
        const std::size_t given = left_.size() / sizeof(float);
        const std::size_t own = given < static_cast<std::size_t>(count) ? given : count;
        fill(values.data(), own * sizeof(float));
        for (std::size_t i = own; own > 0 && i < values.size(); ++i) values[i] = values[i % own];
        return values;
    }
    std::string text(std::size_t bytes) {
        std::string found(bytes < left_.size() ? bytes : left_.size(), '\0');
        fill(found.data(), found.size());
        return found;
    }
    std::size_t size() const { return left_.size(); }

   private:
    std::span<const std::uint8_t> left_;
};

// Ends the process unless both results have the same bits. Which NaN results is not part of the rule.
inline void require_equal(const char* what, const std::vector<float>& expected,
                          const std::vector<float>& got) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
        if (expected[i] != expected[i] && got[i] != got[i]) continue;
        if (std::memcmp(&expected[i], &got[i], sizeof(float)) == 0) continue;
        std::fprintf(stderr, "%s: number %zu is %a, not %a\n", what, i, got[i], expected[i]);
        std::abort();
    }
}

}  // namespace chaski
