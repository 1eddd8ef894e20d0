// Which variant of a kernel (variants.h) each product takes. Products that are computed anyway measure them:
// as long as a choice is open, the matrices of a model take the variants in turns, each matrix another one in
// every run, until each variant has worked for a while; then the fastest is picked. So measuring costs no
// time of its own, and knows the machine as it is, with all threads at work.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kernels.h"

namespace chaski {

// The work that one variant has done so far, and the time it took.
struct VariantTimes {
    std::atomic<std::int64_t> work{0};  // bytes of panels times tokens
    std::atomic<std::int64_t> nanoseconds{0};
};

class VariantPicks {
   public:
    // All products of quantized weights of one type, with tokens of one class.
    struct Choice {
        std::span<const Variant> variants;
        std::atomic<int> picked{-1};  // index; -1: none yet
        std::vector<VariantTimes> times;
    };

    // A run of one product: the variant that it takes, and where its time counts, if it does.
    class Trial {
       public:
        Trial(VariantPicks& picks, Choice& choice, int index, bool counts)
            : variant(choice.variants[index]),
              picks_(picks),
              choice_(choice),
              index_(index),
              counts_(counts),
              begin_(counts ? Clock::now() : Clock::time_point{}) {}
        // `work` as in VariantTimes.
        void finish(std::int64_t work) const {
            if (counts_) picks_.add(choice_, index_, work, Clock::now() - begin_);
        }

        const Variant& variant;

       private:
        using Clock = std::chrono::steady_clock;
        VariantPicks& picks_;
        Choice& choice_;
        const int index_;
        const bool counts_;
        const Clock::time_point begin_;
    };

    // Without a seed choices are measured. With one every product takes a variant at random, for tests.
    explicit VariantPicks(const Kernels& kernels, std::optional<std::uint32_t> seed = std::nullopt);

    // A product with n tokens. Its `turn` counts its runs, and differs from product to product; below 0 it
    // takes no part in measuring.
    Trial trial(DType type, std::int64_t n, std::int64_t turn);

    // Picks by name; false if there is no such type, class or variant. Nothing is measured after that.
    bool pick(const std::string& type, const std::string& token_class, const std::string& variant);
    // Ends all measuring: what is not picked yet takes its first variant.
    void settle();

    struct Pick {
        std::string type, token_class, variant;
    };
    std::vector<Pick> picks() const;
    // The number of choices that were measured to the end.
    int measured() const { return measured_.load(); }

   private:
    using Choices = std::array<Choice, kTokenClasses.size()>;

    void add(Choice& choice, int index, std::int64_t work, std::chrono::nanoseconds time);
    void decide(Choice& choice);

    const std::optional<std::uint32_t> seed_;
    std::map<DType, Choices> choices_;  // of every quantized type; never changes its shape
    std::mutex mutex_;
    std::atomic<int> measured_{0};
};

}  // namespace chaski
