// Picks the variant of a kernel (variants.h) for each product. The products of normal runs measure the
// variants: while a choice is open, the matrices of a model take the variants in turns, and each matrix takes
// another variant in every run. When each matrix has used each variant once, a round is over. After some
// rounds the clearly slower variants are dropped, and after further rounds the fastest is picked. So
// measuring costs no extra time, and it measures real conditions, with all threads at work.
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
    // A run of a product: the product's number in the plan, and the number of runs of the plan so far.
    struct Turn {
        std::int64_t product, run;
    };

    // The choice for all products with quantized weights of one type and a class of token counts.
    struct Choice {
        std::span<const Variant> variants;
        std::atomic<int> picked{-1};  // index; -1: none yet

        // The mutex guards the following members.
        struct Candidate {
            int index;
            std::int64_t work = 0;  // bytes of panels times tokens, in this round
            std::chrono::nanoseconds time{0};
            std::vector<double> rates{};  // of rounds, relative to the first variant
        };
        std::vector<Candidate> candidates;  // the first variant, and variants that may be faster
        std::int64_t run = -1;
        std::int64_t runs = 0;  // in this round
        bool is_disturbed = true;
    };

    // A run of one product: its variant, and the choice that its time counts for, if any.
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

    // Without a seed, choices are measured. With a seed, every product takes a random variant, for tests.
    explicit VariantPicks(const Kernels& kernels, std::optional<std::uint32_t> seed = std::nullopt);

    // A product with n tokens. A product whose weights are not laid out yet takes no turn, since it disturbs
    // the others.
    Trial trial(DType type, std::int64_t n, std::optional<Turn> turn);

    // Picks a variant by name and ends its measuring; false if the type, class or variant does not exist.
    bool pick(const std::string& type, const std::string& token_class, const std::string& variant);
    // Ends all measuring: open choices take their first variant.
    void settle();

    struct Pick {
        std::string type, token_class, variant;
    };
    std::vector<Pick> picks() const;
    // The number of choices whose measuring is complete.
    int measured() const { return measured_.load(); }

   private:
    using Choices = std::array<Choice, kTokenClasses.size()>;

    void add(Choice& choice, int index, std::int64_t work, std::chrono::nanoseconds time);
    void end_round(Choice& choice);

    const std::optional<std::uint32_t> seed_;
    std::map<DType, Choices> choices_;  // of every quantized type; its keys never change
    std::mutex mutex_;
    std::atomic<int> measured_{0};
};

}  // namespace chaski
