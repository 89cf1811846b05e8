#include "guard/pace.hpp"

#include <algorithm>
#include <vector>

namespace tessera::guard {

std::optional<Pace::Change> Pace::judge(double seconds_a_token) {
  recent_.push_back(seconds_a_token);
  if (static_cast<std::int64_t>(recent_.size()) < window_) return std::nullopt;
  std::vector<double> sorted(recent_.begin(), recent_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  recent_.clear();
  if (!usual_) {
    usual_ = *middle;
    return std::nullopt;
  }
  if (*middle < factor_ * *usual_ && *usual_ < factor_ * *middle) return std::nullopt;
  const Change change{.before = *usual_, .now = *middle};
  usual_ = *middle;
  return change;
}

}  // namespace tessera::guard
