#include "guard/stragglers.hpp"

#include <algorithm>

#include "guard/median.hpp"

namespace tessera::guard {
namespace {

constexpr double kTooSlow = 1.2;      // times the median
constexpr double kNoticeable = 1e-3;  // s; tiny steps differ by what rank 0 writes about them
constexpr double kMostSteps = 0.8;

}  // namespace

RankSpread rank_spread(std::span<const double> seconds) {
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  return {.least = *least,
          .median = median({seconds.begin(), seconds.end()}),
          .most = *most,
          .slowest = static_cast<int>(most - seconds.begin())};
}

std::optional<int> Stragglers::judge(const RankSpread& step) {
  const bool slow = step.most >= kTooSlow * step.median && step.most >= step.median + kNoticeable;
  slow_.push_back(slow ? step.slowest : -1);
  if (static_cast<std::int64_t>(slow_.size()) < window_) return std::nullopt;
  if (static_cast<std::int64_t>(slow_.size()) > window_) slow_.pop_front();
  std::optional<int> found;
  for (const int rank : {slow_.back(), slow_.front(), named_.value_or(-1)}) {
    const auto times = std::count(slow_.begin(), slow_.end(), rank);
    if (rank >= 0 && static_cast<double>(times) >= kMostSteps * static_cast<double>(window_))
      found = rank;
  }
  const bool news = found && found != named_;
  named_ = found;
  return news ? found : std::nullopt;
}

}  // namespace tessera::guard
