// The formula of a drawn target's loss and its derivative, shared by every back end.
#pragma once

#include <cmath>

#include "kernels/api/policy.hpp"
#include "kernels/common/math.hpp"

namespace tessera::kernels {

/// The arrays of PolicyLoss, and what it says of one target.
struct PolicyTargets {
  const float* target_losses;
  const std::int32_t* targets;
  const float *advantages, *weights, *drawn, *reference;  // all but the first may be null
  const float* scale;
  float *losses, *slopes;
  float *clipped, *moved;  // may be null
  PolicyTerms terms;

  TESSERA_INLINE void note(std::int64_t t, bool held, double log_ratio) const {
    if (clipped == nullptr) return;
    clipped[t] = held ? 1 : 0;
    moved[t] = static_cast<float>(-log_ratio);
  }
  TESSERA_INLINE void finish(std::int64_t t) const {
    if (targets[t] < 0) {
      losses[t] = slopes[t] = 0;
      return note(t, false, 0);
    }
    const auto now = static_cast<double>(target_losses[t]);
    double loss = now - now, slope = 0;  // NaN where log p is not finite
    if (reference != nullptr) {
      const double q = now - static_cast<double>(reference[t]), beyond = std::expm1(q);
      loss += static_cast<double>(terms.kl) * (beyond - q);
      slope += static_cast<double>(terms.kl) * beyond;
    }
    const double log_ratio = drawn == nullptr ? 0 : static_cast<double>(drawn[t]) - now,
                 ratio = drawn == nullptr ? 1 : std::exp(log_ratio);
    const double within = std::fmin(std::fmax(ratio, 1 - static_cast<double>(terms.low)),
                                    1 + static_cast<double>(terms.high));
    const auto better = static_cast<double>(advantages[t]);
    const bool held = within * better < ratio * better;
    note(t, held, log_ratio);
    loss -= (held ? within : ratio) * better;
    slope += held ? 0 : ratio * better;
    const double weight = weights == nullptr ? 1 : static_cast<double>(weights[t]);
    losses[t] = static_cast<float>(weight * loss);
    slopes[t] = static_cast<float>(static_cast<double>(*scale) * weight * slope);
  }
};

inline PolicyTargets targets_of(const PolicyLoss& a) {
  return {.target_losses = a.target_losses.as<float>(),
          .targets = a.targets.as<std::int32_t>(),
          .advantages = a.advantages.as<float>(),
          .weights = a.weights ? a.weights.as<float>() : nullptr,
          .drawn = a.drawn ? a.drawn.as<float>() : nullptr,
          .reference = a.reference ? a.reference.as<float>() : nullptr,
          .scale = a.scale.as<float>(),
          .losses = a.losses.as<float>(),
          .slopes = a.slopes.as<float>(),
          .clipped = a.statistics ? a.statistics.as<float>() : nullptr,
          .moved = a.statistics ? a.statistics.as<float>() + a.targets.elements() : nullptr,
          .terms = a.terms};
}

/// The arrays of ValueLoss, and what it says of one target.
struct ValueTargets {
  const float* values;
  const std::int32_t* targets;
  const float *returns, *weights, *drawn;  // the last two may be null
  const float* scale;
  float *losses, *slopes;
  bool add;
  ValueTerms terms;

  TESSERA_INLINE void finish(std::int64_t t) const {
    if (!add) losses[t] = 0;
    if (targets[t] < 0) {
      slopes[t] = 0;
      return;
    }
    const auto now = static_cast<double>(values[t]), wanted = static_cast<double>(returns[t]);
    double off = now - wanted;
    bool held = false;  // by the clip, of which the derivative is 0
    if (drawn != nullptr) {
      const auto then = static_cast<double>(drawn[t]), most = static_cast<double>(terms.clip);
      const double clipped = std::fmin(std::fmax(now, then - most), then + most) - wanted;
      held = clipped * clipped > off * off;
      if (held) off = clipped;
    }
    const double weight = static_cast<double>(terms.weight) *
                          (weights == nullptr ? 1 : static_cast<double>(weights[t]));
    losses[t] = static_cast<float>(static_cast<double>(losses[t]) + weight / 2 * off * off);
    slopes[t] = static_cast<float>(held ? 0 : static_cast<double>(*scale) * weight * off);
  }
};

inline ValueTargets targets_of(const ValueLoss& a) {
  return {.values = a.values.as<float>(),
          .targets = a.targets.as<std::int32_t>(),
          .returns = a.returns.as<float>(),
          .weights = a.weights ? a.weights.as<float>() : nullptr,
          .drawn = a.drawn ? a.drawn.as<float>() : nullptr,
          .scale = a.scale.as<float>(),
          .losses = a.losses.as<float>(),
          .slopes = a.slopes.as<float>(),
          .add = a.write == Write::add,
          .terms = a.terms};
}

}  // namespace tessera::kernels
