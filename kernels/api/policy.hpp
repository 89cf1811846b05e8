// Losses of tokens that a policy, the model, has drawn itself and that were judged since.
#pragma once

#include "kernels/api/access.hpp"

namespace tessera::kernels {

/// What a target's loss is, of log p under the model, log p_drawn under the model that drew it and
/// log p_reference under a frozen one, with A how much better it was than expected:
///   -min(r A, clip(r, 1 - low, 1 + high) A) + kl (exp(q) - q - 1),
///   r = p / p_drawn, q = log p_reference - log p
/// times what the target weighs in the mean.
/// The first term is that of Schulman et al. 2017 (PPO, equation 7), the second an estimate of the
/// divergence from the reference, which it keeps small (Schulman 2020, "Approximating KL
/// divergence"; Shao et al. 2024, GRPO, equation 4).
struct PolicyTerms {
  float low = 0, high = 0;
  float kl = 0;
  bool operator==(const PolicyTerms&) const = default;
};

/// What is said of each target beside its loss: whether the clip holds it, so that it moves
/// nothing, 1 or 0; and log p_drawn - log p, of which the mean estimates how far the model has
/// moved since.
inline constexpr std::int64_t kPolicyStats = 2;

/// The losses of R targets and the slopes that make their gradients: of each -log p the derivative
/// of its target's loss, times scale. Where log p is no finite number, neither is the loss.
struct PolicyLoss {
  static constexpr const char* kName = "policy_loss";
  View target_losses;  // (R) f32: -log p of each target, 0 where it does not count
  View targets;        // (R) i32: below 0 where it does not count
  View advantages;     // (R) f32: A
  View weights;        // (R) f32: what each weighs; absent: all 1
  View drawn;          // (R) f32: -log p_drawn; absent: the model has drawn them itself, r = 1
  View reference;      // (R) f32: -log p_reference; present where terms.kl is above 0
  View scale;          // (1) f32: loss scale / targets of the global batch
  View losses;         // (R) f32; 0 where a target does not count
  View slopes;         // (R) f32; 0 where a target does not count
  View statistics;     // (kPolicyStats, R) f32; 0 where a target does not count; may be absent
  PolicyTerms terms;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.target_losses, Access::read), f(s.targets, Access::read), f(s.advantages, Access::read),
        f(s.weights, Access::read), f(s.drawn, Access::read), f(s.reference, Access::read),
        f(s.scale, Access::read), f(s.losses, Access::write), f(s.slopes, Access::write),
        f(s.statistics, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const PolicyLoss&) const = default;
};

/// What the loss of an estimated value v of a state is beside that of the token that was drawn in
/// it, with g the return that came of it, and v' its value when it was drawn:
///   weight / 2 max((v - g)^2, (clip(v, v' - clip, v' + clip) - g)^2)
/// (Schulman et al. 2017, PPO, equation 9; clipped as in its authors' code, so that values too move
/// little from one round to the next).
struct ValueTerms {
  float weight = 0, clip = 0;
  bool operator==(const ValueTerms&) const = default;
};

/// Losses of values, beside those of R targets or by themselves, and their slopes: the derivative
/// of each value's loss, times scale.
struct ValueLoss {
  static constexpr const char* kName = "value_loss";
  View values;   // (R) f32: v
  View targets;  // (R) i32: below 0 where it does not count
  View returns;  // (R) f32: g
  View weights;  // (R) f32: what each weighs; absent: all 1
  View drawn;    // (R) f32: v'; absent: values are those of the model that drew, nothing is clipped
  View scale;    // (1) f32: loss scale / targets of the global batch
  View losses;   // (R) f32; of targets that do not count they stay, or are 0
  View slopes;   // (R) f32; 0 where a target does not count
  Write write = Write::add;  // to losses of targets, or overwrite
  ValueTerms terms;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.values, Access::read), f(s.targets, Access::read), f(s.returns, Access::read),
        f(s.weights, Access::read), f(s.drawn, Access::read), f(s.scale, Access::read),
        f(s.losses, access_of(s.write)), f(s.slopes, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const ValueLoss&) const = default;
};

}  // namespace tessera::kernels
