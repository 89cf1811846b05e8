// What a model says of pairs of answers, beside their losses.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>

#include "core/exact_sum.hpp"
#include "kernels/api/preference.hpp"

namespace tessera::train {

/// Means over pairs. A log ratio is log p - log p_reference of an answer; times beta it is the
/// answer's reward. Of a reward model an answer has its score in place of it, which is its reward.
struct Preferences {
  double chosen = 0, rejected = 0;  // log ratios
  double accuracy = 0;              // the share of pairs whose chosen answer has the larger one

  double margin() const { return chosen - rejected; }
  /// Over all answers: how far the model has moved from the reference model.
  double log_ratio() const { return (chosen + rejected) / 2; }
};

/// For people; `beta` is task.beta, nothing of a reward model.
std::string to_text(const Preferences& preferences, std::optional<double> beta);

/// Exact sums, so that neither layouts nor ranks change a bit of the means.
struct PreferenceSums {
  std::array<std::int64_t, kernels::kPreferenceStats * kExactSumWords> words{};
  std::int64_t pairs = 0;  // that count

  /// From Plan::statistics, of pairs.
  void assign(std::span<const std::int64_t> of_plan) {
    std::copy_n(of_plan.begin(), words.size(), words.begin());
  }
  void add(const PreferenceSums& other) {
    for (std::size_t s = 0; s < kernels::kPreferenceStats; ++s) exact_merge(of(s), other.of(s));
    pairs += other.pairs;
  }
  Preferences means() const {
    const auto mean = [&](std::size_t s) {
      return exact_value(of(s)) / static_cast<double>(std::max<std::int64_t>(1, pairs));
    };
    return {.chosen = mean(0), .rejected = mean(1), .accuracy = mean(2)};
  }

 private:
  ExactWords of(std::size_t s) {
    return ExactWords(words.data() + s * kExactSumWords, kExactSumWords);
  }
  ConstExactWords of(std::size_t s) const {
    return ConstExactWords(words.data() + s * kExactSumWords, kExactSumWords);
  }
};

}  // namespace tessera::train
