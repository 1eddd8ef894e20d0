#include "variant_picks.h"

#include <algorithm>

namespace chaski {

namespace {

// How long each variant works before one is picked, and by how much it must be faster than the first one,
// which is taken where nothing is known: less than that is noise.
constexpr std::chrono::nanoseconds kEnough = std::chrono::milliseconds(60);
constexpr double kGain = 1.02;

double rate(const VariantTimes& times) {
    return static_cast<double>(times.work) /
           static_cast<double>(std::max<std::int64_t>(times.nanoseconds, 1));
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
            choices[i].variants = variants_of(format.type, static_cast<int>(i), kernels.stream_tokens);
            choices[i].times = std::vector<VariantTimes>(choices[i].variants.size());
        }
    }
}

VariantPicks::Trial VariantPicks::trial(DType type, std::int64_t n, std::int64_t turn) {
    Choice& choice = choices_.at(type)[token_class_of(n)];
    const auto count = static_cast<std::int64_t>(choice.variants.size());
    if (seed_) return {*this, choice, static_cast<int>(mixed(*seed_, n, turn) % count), false};
    const int picked = choice.picked.load(std::memory_order_relaxed);
    if (picked >= 0 || turn < 0) return {*this, choice, std::max(picked, 0), false};
    return {*this, choice, static_cast<int>(turn % count), true};
}

void VariantPicks::add(Choice& choice, int index, std::int64_t work, std::chrono::nanoseconds time) {
    VariantTimes& times = choice.times[index];
    times.work += work;
    const std::int64_t before = times.nanoseconds.fetch_add(time.count());
    if (before < kEnough.count() && before + time.count() >= kEnough.count()) decide(choice);
}

void VariantPicks::decide(Choice& choice) {
    const std::lock_guard lock(mutex_);
    if (choice.picked >= 0) return;
    const auto is_open = [](const VariantTimes& times) { return times.nanoseconds < kEnough.count(); };
    if (std::any_of(choice.times.begin(), choice.times.end(), is_open)) return;
    const auto best = std::max_element(choice.times.begin(), choice.times.end(),
                                       [](const auto& a, const auto& b) { return rate(a) < rate(b); });
    const bool pays = rate(*best) > kGain * rate(choice.times[0]);
    choice.picked = pays ? static_cast<int>(best - choice.times.begin()) : 0;
    ++measured_;
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
