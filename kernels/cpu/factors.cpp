// Factors of tensors in 1-bit LAMB on the CPU: checks arguments, divides elements over the team.
#include "kernels/common/factors.hpp"

#include <algorithm>
#include <atomic>

#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {

void run(const AverageTrust& a, const Context&) {
  if (!applies(a.verdict.as<float>())) return;
  const auto* sums = a.sums.as<std::int64_t>();
  auto* average = a.average.as<float>();
  for (std::int64_t t = 0; t < a.average.elements(); ++t) {
    std::int64_t words[kTensorWords];
    std::copy_n(sums + t * kTensorWords, kTensorWords, words);
    average[t] = averaged_trust(average[t], words, a.beta3, a.trust_min, a.trust_max);
  }
}

void run(const MomentRatio& a, const Context& context) {
  if (!applies(a.verdict.as<float>())) return;
  std::atomic<std::int64_t> largest = 0;  // ratios are 0 at least
  parallel_ranges(context.threads, a.moment.elements(), 4096, [&](Range elements) {
    const std::int64_t mine = context.hot.moment_ratio(a, elements);
    std::int64_t most = largest.load(std::memory_order_relaxed);
    while (most < mine && !largest.compare_exchange_weak(most, mine, std::memory_order_relaxed)) {
    }
  });
  if (!a.largest) return;
  auto& words = *a.largest.as<std::int64_t>();
  words = std::max(words, largest.load());
}

void run(const FollowRatio& a, const Context&) {
  if (!applies(a.verdict.as<float>())) return;
  const auto* largest = a.largest.as<std::int64_t>();
  auto* ratio = a.ratio.as<float>();
  for (std::int64_t t = 0; t < a.ratio.elements(); ++t)
    ratio[t] = followed_ratio(ratio[t], largest[t], a.threshold, a.r_min, a.r_max);
}

}  // namespace tessera::kernels::cpu
