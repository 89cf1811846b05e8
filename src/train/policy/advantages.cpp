#include "train/policy/advantages.hpp"

#include <cmath>
#include <numeric>

namespace tessera::train {

std::vector<double> group_advantages(std::span<const double> rewards, std::int64_t samples,
                                     bool scale) {
  std::vector<double> all;
  all.reserve(rewards.size());
  const auto n = static_cast<std::size_t>(samples);
  for (std::size_t first = 0; first + n <= rewards.size(); first += n) {
    const auto group = rewards.subspan(first, n);
    const double mean =
        std::accumulate(group.begin(), group.end(), 0.0) / static_cast<double>(samples);
    double squares = 0;
    for (const double r : group) squares += (r - mean) * (r - mean);
    const double deviation = std::sqrt(squares / static_cast<double>(samples - 1));
    for (const double r : group) all.push_back((r - mean) / (scale ? deviation + 1e-4 : 1.0));
  }
  return all;
}

}  // namespace tessera::train
