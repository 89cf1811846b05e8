// Ranks that are slower than the others, step after step: a throttled GPU, a bad link, a busy node.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>

namespace tessera::guard {

/// Seconds that something took each rank in one step.
struct RankSpread {
  double least = 0, median = 0, most = 0;
  int slowest = 0;  // the rank of `most`
};

/// `seconds`: one entry a rank, at least one.
RankSpread rank_spread(std::span<const double> seconds);

class Stragglers {
 public:
  /// Judges the last `window` steps (> 0).
  explicit Stragglers(std::int64_t window = 50) : window_(window) {}
  /// The rank that was the slowest, and took at least 1.2 times the median and a millisecond more,
  /// in four of five steps of the window. It is returned once, and again only after it had
  /// recovered.
  std::optional<int> judge(const RankSpread& step);

 private:
  std::int64_t window_;
  std::deque<int> slow_;  // the rank that was too slow in each step, or -1
  std::optional<int> named_;
};

}  // namespace tessera::guard
