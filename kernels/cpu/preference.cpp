// Losses of pairs on the CPU: checks arguments, divides pairs over the team. A sample's losses are
// added in the order of its targets, so that neither threads nor layouts change a bit. Scores, one
// a sample, are too few to divide.
#include "kernels/common/preference.hpp"

#include <algorithm>

#include "kernels/common/types.hpp"
#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

void run_pair(const PreferenceLoss& a, std::int64_t pair) {
  const std::int64_t tokens = a.target_losses.cols();
  double log_p[2] = {0, 0};
  bool counts = false;
  for (std::int64_t s = 0; s < 2; ++s) {
    const std::int64_t first = (2 * pair + s) * tokens;
    const float* losses = a.target_losses.as<float>() + first;
    const std::int32_t* targets = a.targets.as<std::int32_t>() + first;
    for (std::int64_t t = 0; t < tokens; ++t) {
      log_p[s] -= static_cast<double>(losses[t]);
      counts = counts || targets[t] >= 0;
    }
  }
  finish_pair(a.terms, a.target_losses.rows() / 2, pair, log_p, counts,
              a.reference ? a.reference.as<double>() : nullptr,
              a.scale ? a.scale.as<float>() : nullptr, a.losses.as<float>(),
              a.statistics.as<float>(), [&](std::int64_t s, float slope) {
                std::fill_n(a.slopes.as<float>() + (2 * pair + s) * tokens, tokens, slope);
              });
}

}  // namespace

void run(const PreferenceLoss& a, const Context& context) {
  parallel_ranges(context.threads, a.target_losses.rows() / 2, 1, [&](Range pairs) {
    for (std::int64_t p = pairs.begin; p < pairs.end; ++p) run_pair(a, p);
  });
}

void run(const Score& a, const Context&) {
  const auto* targets = a.targets.as<std::int32_t>();
  auto* losses = a.losses.as<float>();
  with_type(a.logits.type, [&]<typename T>() {
    for (std::int64_t r = 0; r < a.logits.rows(); ++r) {
      const auto score = static_cast<float>(a.logits.as<T>()[r * a.logits.ld]);
      losses[r] = targets[r] < 0 ? 0.0F : -score;
    }
  });
}

void run(const ScoreGradient& a, const Context&) {
  const auto* slopes = a.slopes.as<float>();
  with_type(a.logits.type, [&]<typename T>() {
    for (std::int64_t r = 0; r < a.logits.rows(); ++r) {
      T* row = a.logits.as<T>() + r * a.logits.ld;
      std::fill_n(row, a.logits.cols(), static_cast<T>(0.0F));
      row[0] = static_cast<T>(-slopes[r]);
    }
  });
}

}  // namespace tessera::kernels::cpu
