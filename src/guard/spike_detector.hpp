// Losses that leap: a robust z-score over a window of recent losses, after the rule of Iglewicz and
// Hoaglin (1993): median and median absolute deviation, which the spike itself cannot move.
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

  /// The z-score of `loss` if it is a spike. One that is not, joins the window, and so do losses
  /// after half a window of spikes in a row. Every rank sees the
  /// same losses and so comes to the same verdict. Losses that are not finite are no business of
  /// this guard.
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
