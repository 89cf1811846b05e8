// The formulas of losses and their gradients, and a row's loss from the statistics of parts of the
// vocabulary, shared by every back end.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/api/classifier.hpp"
#include "kernels/common/math.hpp"
#include "kernels/common/tree.hpp"

namespace tessera::kernels {

/// Logits with a soft cap: what becomes of one, and its slope. Without a cap nothing is computed.
/// `F`: float, or a vector of floats.
template <typename F, bool kCapped>
struct LogitCap {
  F cap, inverse;

  TESSERA_INLINE explicit LogitCap(float most) : cap(most), inverse(1.0F / most) {}
  TESSERA_INLINE F value(F x) const {
    if constexpr (!kCapped) return x;
    return tanh_of(x * inverse) * cap;
  }
  /// g times the slope at x.
  TESSERA_INLINE F times_slope(F g, F x) const {
    if constexpr (!kCapped) return g;
    return g * tanh_slope(tanh_of(x * inverse));
  }
};

/// f.operator()<kCapped>().
template <typename Function>
void with_cap(float cap, Function&& f) {
  if (cap > 0) return f.template operator()<true>();
  f.template operator()<false>();
}

/// The first index of the largest of n values, as comparisons say.
template <typename Value>
TESSERA_INLINE std::int64_t first_largest(std::int64_t n, Value&& value) {
  std::int64_t best = 0;
  float most = value(0);
  for (std::int64_t i = 1; i < n; ++i) {
    if (const float x = value(i); x > most) best = i, most = x;
  }
  return best;
}

/// A row's loss from the target's logit and the sum of all logits, which counts only where labels
/// are smoothed: it is not finite where a logit is -inf.
TESSERA_INLINE float loss_of(const LossTerms& terms, std::int64_t vocab, double lse, double target,
                             double logits) {
  const auto z = static_cast<double>(terms.z_loss);
  if (terms.label_smoothing > 0) {
    const auto s = static_cast<double>(terms.label_smoothing);
    target = (1 - s) * target + s * (logits / static_cast<double>(vocab));
  }
  return static_cast<float>(lse - target + z * lse * lse);
}

/// The slope of a row's loss: of logit i it is p_i of_softmax(lse) - everywhere, less at_target if
/// it is the target.
struct LossSlope {
  float everywhere, at_target;
  double twice_z;

  TESSERA_INLINE LossSlope(const LossTerms& terms, std::int64_t vocab)
      : everywhere(terms.label_smoothing / static_cast<float>(vocab)),
        at_target(1.0F - terms.label_smoothing),
        twice_z(2 * static_cast<double>(terms.z_loss)) {}
  TESSERA_INLINE double of_softmax(double lse) const { return 1 + twice_z * lse; }
};

/// The row's loss and lse; `stats` are the first part's (ClassifyPart), those of the next are
/// `stride` further. kLevels as in tree_sum.
template <int kLevels = kAnyLevels>
TESSERA_INLINE void loss_of_parts(const float* stats, std::int64_t parts, std::int64_t stride,
                                  const LossTerms& terms, std::int64_t vocab, bool ignored,
                                  float& loss, float& lse) {
  double top = -std::numeric_limits<double>::infinity(), target = 0;
  for (std::int64_t p = 0; p < parts; ++p) {
    const auto part_top = static_cast<double>(stats[p * stride]);
    top = top < part_top ? part_top : top;
    target += static_cast<double>(stats[p * stride + 2]);  // all but one are 0
  }
  const double sum = tree_sum<kLevels>(parts, [&](std::int64_t p) {
    const float* part = stats + p * stride;
    return static_cast<double>(part[1]) * std::exp(static_cast<double>(part[0]) - top);
  });
  const double logits = tree_sum<kLevels>(
      parts, [&](std::int64_t p) { return static_cast<double>(stats[p * stride + 3]); });
  const double log_sum = top + std::log(sum);
  lse = static_cast<float>(log_sum);
  loss = ignored ? 0.0F : loss_of(terms, vocab, log_sum, target, logits);
}

}  // namespace tessera::kernels
