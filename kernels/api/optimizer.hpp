// The optimizer's update of a flat shard, and the scalars that rule a step.
#pragma once

#include "kernels/api/access.hpp"

namespace tessera::kernels {

/// Indices into the step's scalars, f32, written by the host before the step starts.
enum class StepScalar : std::uint8_t {
  loss_gradient,  // loss scale / valid tokens: Classify's scale
  unscale,        // 1 / loss scale
  lr,
  bias_correction1,  // 1 - beta1^t, t counts applied updates
  bias_correction2,  // 1 - beta2^t
  count
};

/// Indices into the verdict, f32, written by Verdict on every rank alike.
enum class VerdictField : std::uint8_t {
  apply,        // 1: the update happens, 0: the step is skipped
  coefficient,  // what gradients are multiplied with: unscaling and clipping in one
  count
};

/// Decides the step from the norm's exact sum (Pascanu et al. 2013 for clipping): norm = sqrt(sum)
/// * unscale; apply = norm is finite; coefficient = unscale * min(1, clip_norm / (norm + 1e-6)), no
/// clipping at clip_norm 0.
struct Verdict {
  static constexpr const char* kName = "verdict";
  View squares;  // exact accumulator (core/exact_sum.hpp) of the gradients' squares over all ranks
  View scalars;  // (StepScalar::count) f32
  View verdict;  // (VerdictField::count) f32
  double clip_norm = 0;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.squares, Access::read), f(s.scalars, Access::read), f(s.verdict, Access::write),
        f(s.scratch, Access::write);
  }
};

/// Adam (Kingma and Ba 2015), or AdamW with decoupled decay (Loshchilov and Hutter 2019),
/// bias-corrected as in PyTorch, one pass:  g = coefficient * gradient;  L2: g += decay * master;
/// m, v moments of g;
///   AdamW: master *= 1 - lr * decay;  master -= lr / c1 * m / (sqrt(v) / sqrt(c2) + eps);
///   parameter = round(master).
/// Elements are independent and round alike whatever the alignment and length (trap 54). apply = 0:
/// nothing changes.
struct AdamUpdate {
  static constexpr const char* kName = "adam";
  View gradient;   // (n) accumulation type
  View master;     // (n) f32
  View m, v;       // (n) f32
  View parameter;  // (n) compute type; absent when master is what forward uses
  View scalars;    // (StepScalar::count) f32
  View verdict;    // (VerdictField::count) f32
  float beta1 = 0.9F, beta2 = 0.95F, eps = 1e-8F, decay = 0;
  enum class Decay : std::uint8_t { decoupled, l2 } decay_kind = Decay::decoupled;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.gradient, Access::read), f(s.scalars, Access::read), f(s.verdict, Access::read);
    f(s.master, Access::update), f(s.m, Access::update), f(s.v, Access::update);
    f(s.parameter, Access::write), f(s.scratch, Access::write);
  }
};

}  // namespace tessera::kernels
