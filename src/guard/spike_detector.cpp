#include "guard/spike_detector.hpp"

#include <algorithm>
#include <cmath>

namespace tessera::guard {
namespace {

/// Of an even number of values, the upper of the two in the middle: no spike depends on which.
double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::optional<double> SpikeDetector::judge(double loss) {
  if (!std::isfinite(loss)) return std::nullopt;
  if (2 * static_cast<std::int64_t>(recent_.size()) >= window_) {
    const double center = median(recent_);
    std::vector<double> distances;
    for (double other : recent_) distances.push_back(std::abs(other - center));
    // 1.4826 makes the deviation that of a normal distribution; a thousandth of the loss is the
    // least that counts as one, for a window of equal losses has none.
    const double deviation = std::max(1.4826 * median(distances), 1e-3 * std::abs(center));
    const double z = (loss - center) / deviation;
    if (z > threshold_) return z;
  }
  recent_.push_back(loss);
  if (static_cast<std::int64_t>(recent_.size()) > window_) recent_.erase(recent_.begin());
  return std::nullopt;
}

void SpikeDetector::restore(std::vector<double> recent) {
  recent_ = std::move(recent);
  while (static_cast<std::int64_t>(recent_.size()) > window_) recent_.erase(recent_.begin());
}

}  // namespace tessera::guard
