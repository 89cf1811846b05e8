#include "train/policy/advantages.hpp"

#include <cmath>
#include <numeric>

namespace tessera::train {

GroupStatistics group_statistics(std::span<const double> rewards) {
  const auto n = static_cast<double>(rewards.size());
  const double mean = std::accumulate(rewards.begin(), rewards.end(), 0.0) / n;
  double squares = 0;
  for (const double r : rewards) squares += (r - mean) * (r - mean);
  return {.mean = mean, .deviation = std::sqrt(squares / (n - 1))};
}

std::vector<double> group_advantages(std::span<const double> rewards, std::int64_t samples,
                                     bool scale) {
  std::vector<double> all;
  all.reserve(rewards.size());
  const auto n = static_cast<std::size_t>(samples);
  for (std::size_t first = 0; first + n <= rewards.size(); first += n) {
    const auto group = rewards.subspan(first, n);
    const auto [mean, deviation] = group_statistics(group);
    for (const double r : group) all.push_back((r - mean) / (scale ? deviation + 1e-4 : 1.0));
  }
  return all;
}

std::vector<double> generalised_advantages(std::span<const double> rewards,
                                           std::span<const float> values, double gamma,
                                           double lambda) {
  std::vector<double> all(rewards.size());
  double next_value = 0, next = 0;
  for (std::size_t t = rewards.size(); t-- > 0;) {
    const auto value = static_cast<double>(values[t]);
    all[t] = next = rewards[t] + gamma * next_value - value + gamma * lambda * next;
    next_value = value;
  }
  return all;
}

}  // namespace tessera::train
