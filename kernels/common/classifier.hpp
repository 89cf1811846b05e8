// A row's loss from the statistics of parts of the vocabulary, shared by every back end.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/common/tree.hpp"

namespace tessera::kernels {

/// The row's loss and lse; `stats` are the first part's {largest logit m, sum of exp(logit - m),
/// target's logit}, those of the next are `stride` further. kLevels as in tree_sum.
template <int kLevels = kAnyLevels>
TESSERA_INLINE void loss_of_parts(const float* stats, std::int64_t parts, std::int64_t stride,
                                  bool ignored, float& loss, float& lse) {
  double top = -std::numeric_limits<double>::infinity(), target = 0;
  for (std::int64_t p = 0; p < parts; ++p) {
    const auto part_top = static_cast<double>(stats[p * stride]);
    top = top < part_top ? part_top : top;
    target += static_cast<double>(stats[p * stride + 2]);  // all but one are 0
  }
  const double sum = tree_sum<kLevels>(parts, [&](std::int64_t p) {
    const float* part = stats + p * stride;
    return static_cast<double>(part[1]) * std::exp(static_cast<double>(part[0]) - top);
  });
  const double log_sum = top + std::log(sum);
  lse = static_cast<float>(log_sum);
  loss = ignored ? 0.0F : static_cast<float>(log_sum - target);
}

}  // namespace tessera::kernels
