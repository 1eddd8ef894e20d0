// Which variant of a kernel (variants.h) each product takes. Products that are computed anyway measure them:
// as long as a choice is open, the matrices of a model take the variants in turns, each matrix another one in
// every run. When each variant has had each matrix once, a round is over. After some rounds those that are
// clearly slower are left out, and after some more the fastest is picked. So measuring costs no extra time,
// and measures the machine as it is, with all threads at work.
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

class VariantPicks {
   public:
    // A run of a product of the plan: the product's number, and how often the plan has run.
    struct Turn {
        std::int64_t product, run;
    };

    // All products of quantized weights of one type, with tokens of one class.
    struct Choice {
        std::span<const Variant> variants;
        std::atomic<int> picked{-1};  // index; -1: none yet

        // The others are guarded by the mutex.
        struct Candidate {
            int index;
            std::int64_t work = 0;  // bytes of panels times tokens, in this round
            std::chrono::nanoseconds time{0};
            std::vector<double> rates{};  // of rounds, relative to the first variant's
        };
        std::vector<Candidate> candidates;  // the first variant, and those that may be faster
        std::int64_t run = -1;
        std::int64_t runs = 0;  // in this round
        bool is_disturbed = true;
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
        // `work`: bytes of panels times tokens.
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

    // A product with n tokens. One whose weights are not laid out yet has no turn, and disturbs the others.
    Trial trial(DType type, std::int64_t n, std::optional<Turn> turn);

    // Picks by name; false if there is no such type, class or variant. Nothing is measured after that.
    bool pick(const std::string& type, const std::string& token_class, const std::string& variant);
    // Ends all measuring: open choices take their first variant.
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
    void end_round(Choice& choice);

    const std::optional<std::uint32_t> seed_;
    std::map<DType, Choices> choices_;  // of every quantized type; never changes its shape
    std::mutex mutex_;
    std::atomic<int> measured_{0};
};

}  // namespace chaski
