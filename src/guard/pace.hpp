// Whether a run has become slower or faster than it was.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace tessera::guard {

class Pace {
 public:
  /// A change of this factor or more between the medians of two windows counts.
  explicit Pace(std::int64_t window = 50, double factor = 1.25)
      : window_(window), factor_(factor) {}

  struct Change {
    double before = 0, now = 0;  // seconds a token, medians
  };
  /// Takes the time of a step in seconds a token (because batches may grow). Returns a change once;
  /// from then on, steps are compared with the new pace.
  std::optional<Change> judge(double seconds_a_token);

 private:
  std::int64_t window_;
  double factor_;
  std::deque<double> recent_;
  std::optional<double> usual_;
};

}  // namespace tessera::guard
