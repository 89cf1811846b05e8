#include "guard/spike_detector.hpp"

#include <algorithm>
#include <cmath>

#include "guard/median.hpp"

namespace tessera::guard {
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
    // So many in a row are no spike but a new level, which the window has to learn.
    spikes_ = z > threshold_ ? spikes_ + 1 : 0;
    if (spikes_ > 0 && 2 * spikes_ <= window_) return z;
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
