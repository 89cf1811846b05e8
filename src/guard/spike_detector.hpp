// Loss spikes: a robust z-score over a window of recent losses, after the rule of Iglewicz and
// Hoaglin (1993). Median and median absolute deviation are used because a spike itself cannot move
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::guard {

class SpikeDetector {
 public:
  /// Judges against the last `window` losses (> 0), once half of them are there; a loss is a spike
  /// when it lies `threshold` (> 0) scaled deviations above the median.
  SpikeDetector(std::int64_t window, double threshold) : window_(window), threshold_(threshold) {}

  /// The z-score of `loss` if it is a spike. A loss that is no spike joins the window; so does any
  /// loss after half a window of spikes in a row. Every rank sees the same losses, so all decide
  /// alike. Losses that are not finite are not judged here.
  std::optional<double> judge(double loss);

  /// Recent losses, oldest first: in every checkpoint, so that a restart judges alike.
  const std::vector<double>& recent() const { return recent_; }
  void restore(std::vector<double> recent);

 private:
  std::int64_t window_;
  double threshold_;
  std::vector<double> recent_;
  std::int64_t spikes_ = 0;  // in a row
};

}  // namespace tessera::guard
