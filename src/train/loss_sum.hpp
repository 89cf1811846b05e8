// The loss over some targets.
#pragma once

#include <algorithm>
#include <array>

#include "core/exact_sum.hpp"

namespace tessera::train {

/// An exact sum of losses, and over how many targets that count.
struct LossSum {
  std::array<std::int64_t, kExactSumWords> words{};
  std::int64_t targets = 0;

  void add(const LossSum& other) {
    exact_merge(words, other.words);
    targets += other.targets;
  }
  double mean() const {
    return exact_value(words) / static_cast<double>(std::max<std::int64_t>(1, targets));
  }
};

}  // namespace tessera::train
