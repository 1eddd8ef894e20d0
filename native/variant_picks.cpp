#include "variant_picks.h"

#include <algorithm>

namespace chaski {

namespace {

using Choice = VariantPicks::Choice;
using Candidate = Choice::Candidate;

// Minimum thread time of each variant in a round. In this time a variant multiplies matrices of all shapes,
// though not every matrix.
constexpr std::chrono::nanoseconds kLeast = std::chrono::milliseconds(2);
constexpr std::chrono::nanoseconds kEnough = std::chrono::milliseconds(60);

// After this many rounds, variants that are slower than the fastest by more than this share are dropped.
struct Stage {
    std::size_t rounds;
    double slower;
};
constexpr Stage kStages[] = {{1, 0.25}, {3, 0.06}, {5, 0.03}, {9, 0.0}};

// The factor by which the fastest variant must beat the default (the first one); a smaller gain is noise.
constexpr double kGain = 1.01;

double rate(const Candidate& candidate) {
    return static_cast<double>(candidate.work) /
           static_cast<double>(std::max<std::int64_t>(candidate.time.count(), 1));
}

double median_rate(const Candidate& candidate) {
    std::vector<double> rates = candidate.rates;
    const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
    std::nth_element(rates.begin(), middle, rates.end());
    return *middle;
}

bool have_worked(const Choice& choice, std::chrono::nanoseconds time) {
    return std::all_of(choice.candidates.begin(), choice.candidates.end(),
                       [&](const Candidate& candidate) { return candidate.time >= time; });
}

std::uint32_t mixed(std::uint32_t seed, std::int64_t n, std::int64_t turn) {
    std::uint64_t state = (seed + 1) * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(n * 1024 + turn);
    state = (state ^ state >> 29) * 0xbf58476d1ce4e5b9u;
    return static_cast<std::uint32_t>(state >> 32);
}

}  // namespace

VariantPicks::VariantPicks(const Kernels& kernels, std::optional<std::uint32_t> seed) : seed_(seed) {
    for (const BlockFormat& format : kFormats) {
        if (!is_quantized(format.type)) continue;
        Choices& choices = choices_[format.type];
        for (std::size_t i = 0; i < choices.size(); ++i) {
            choices[i].variants =
                variants_of(format.type, static_cast<int>(i), kernels.stream_tokens, kernels.has_tiles);
            const int count = static_cast<int>(choices[i].variants.size());
            for (int index = 0; index < count; ++index) choices[i].candidates.push_back({index});
        }
    }
}

VariantPicks::Trial VariantPicks::trial(DType type, std::int64_t n, std::optional<Turn> turn) {
    Choice& choice = choices_.at(type)[token_class_of(n)];
    if (seed_) {
        const std::int64_t any = turn ? turn->product + turn->run : -1;
        return {*this, choice, static_cast<int>(mixed(*seed_, n, any) % choice.variants.size()), false};
    }
    if (const int picked = choice.picked; picked >= 0) return {*this, choice, picked, false};
    const std::lock_guard lock(mutex_);
    if (!turn) {
        choice.is_disturbed = true;
        return {*this, choice, 0, false};
    }
    const auto count = static_cast<std::int64_t>(choice.candidates.size());
    if (turn->run != choice.run) {
        choice.run = turn->run;
        if (choice.runs == count && have_worked(choice, kLeast)) end_round(choice);
        choice.runs = choice.runs % count + 1;
    }
    if (choice.picked >= 0) return {*this, choice, choice.picked, false};
    const std::size_t place = (turn->product + choice.runs) % choice.candidates.size();
    return {*this, choice, choice.candidates[place].index, true};
}

void VariantPicks::add(Choice& choice, int index, std::int64_t work, std::chrono::nanoseconds time) {
    const std::lock_guard lock(mutex_);
    for (Candidate& candidate : choice.candidates) {
        if (candidate.index != index) continue;
        candidate.work += work;
        candidate.time += time;
    }
    if (choice.picked < 0 && have_worked(choice, kEnough)) end_round(choice);
}

void VariantPicks::end_round(Choice& choice) {
    std::vector<Candidate>& candidates = choice.candidates;
    const double first = rate(candidates[0]);
    for (Candidate& candidate : candidates) {
        if (!choice.is_disturbed) candidate.rates.push_back(rate(candidate) / first);
        candidate.work = 0;
        candidate.time = {};
    }
    choice.is_disturbed = false;
    choice.runs = 0;
    const Stage* stage = std::find_if(std::begin(kStages), std::end(kStages), [&](const Stage& each) {
        return each.rounds == candidates[0].rates.size();
    });
    if (stage == std::end(kStages)) return;
    const auto best = std::max_element(
        candidates.begin(), candidates.end(),
        [](const Candidate& a, const Candidate& b) { return median_rate(a) < median_rate(b); });
    const double fastest = median_rate(*best);
    if (stage + 1 == std::end(kStages)) {
        choice.picked = fastest > kGain ? best->index : 0;
        ++measured_;
        return;
    }
    std::erase_if(candidates, [&](const Candidate& candidate) {
        return candidate.index > 0 && median_rate(candidate) < (1 - stage->slower) * fastest;
    });
}

bool VariantPicks::pick(const std::string& type, const std::string& token_class, const std::string& variant) {
    const std::lock_guard lock(mutex_);
    for (auto& [number, choices] : choices_) {
        if (find_format(number)->name != type) continue;
        for (std::size_t i = 0; i < choices.size(); ++i) {
            if (kTokenClasses[i].name != token_class) continue;
            for (std::size_t j = 0; j < choices[i].variants.size(); ++j) {
                if (choices[i].variants[j].name != variant) continue;
                choices[i].picked = static_cast<int>(j);
                return true;
            }
        }
    }
    return false;
}

void VariantPicks::settle() {
    const std::lock_guard lock(mutex_);
    for (auto& [type, choices] : choices_) {
        for (Choice& choice : choices) choice.picked = std::max(choice.picked.load(), 0);
    }
}

std::vector<VariantPicks::Pick> VariantPicks::picks() const {
    std::vector<Pick> picks;
    for (const auto& [type, choices] : choices_) {
        for (std::size_t i = 0; i < choices.size(); ++i) {
            const int picked = choices[i].picked;
            if (picked < 0) continue;
            picks.push_back(
                {find_format(type)->name, kTokenClasses[i].name, choices[i].variants[picked].name});
        }
    }
    return picks;
}

}  // namespace chaski
