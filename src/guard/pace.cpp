#include "guard/pace.hpp"

#include "guard/median.hpp"

namespace tessera::guard {

std::optional<Pace::Change> Pace::judge(double seconds_a_token) {
  recent_.push_back(seconds_a_token);
  if (static_cast<std::int64_t>(recent_.size()) < window_) return std::nullopt;
  const double now = median({recent_.begin(), recent_.end()});
  recent_.clear();
  if (!usual_) {
    usual_ = now;
    return std::nullopt;
  }
  if (now < factor_ * *usual_ && *usual_ < factor_ * now) return std::nullopt;
  const Change change{.before = *usual_, .now = now};
  usual_ = now;
  return change;
}

}  // namespace tessera::guard
