// The verdict on a step, the optimizer's update of a flat shard, and the scalars that both read.
#pragma once

#include "core/enums.hpp"
#include "core/exact_sum.hpp"
#include "kernels/api/checks.hpp"

namespace tessera::kernels {

/// Indices into the step's scalars, f32, written by the host before the step starts.
enum class StepScalar : std::uint8_t {
  loss_gradient,  // loss scale / tokens of the global batch: Classify's scale
  unscale,        // 1 / loss scale
  lr,
  bias_correction1,  // 1 - beta1^t, t counts applied updates
  bias_correction2,  // 1 - beta2^t
  chance,            // another number for each t, of which roundings at random depend
  count
};

/// Indices into the verdict, f32, written by Verdict on every rank alike.
enum class VerdictField : std::uint8_t {
  apply,        // 1: the update happens, 0: the step is skipped
  coefficient,  // what gradients are multiplied with: unscaling and clipping in one
  count
};

/// How many of each there are.
inline constexpr auto kScalars = static_cast<std::int64_t>(StepScalar::count);
inline constexpr auto kVerdictFields = static_cast<std::int64_t>(VerdictField::count);

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

inline void check(const Verdict& a) {
  check_flat({a.squares}, DType::i64, kExactSumWords);
  check_flat({a.scalars}, DType::f32, kScalars);
  check_flat({a.verdict}, DType::f32, kVerdictFields);
}

/// What an optimizer does to one element; kernels/common/optimizer_steps has the arithmetic.
enum class UpdateRule : std::uint8_t {
  /// Adam (Kingma and Ba 2015), or AdamW where decay is decoupled (Loshchilov and Hutter 2019),
  /// bias-corrected as in PyTorch; m and v are moments of g:
  ///   master -= lr / c1 * m / (sqrt(v) / sqrt(c2) + eps).
  adam,
};

}  // namespace tessera::kernels

template <>
struct tessera::EnumWords<tessera::kernels::UpdateRule> {
  using enum tessera::kernels::UpdateRule;
  static constexpr std::array table = {std::pair{adam, "adam"}};
};

namespace tessera::kernels {

/// How weights decay: directly, master *= 1 - lr * decay (decoupled), or through the gradient, g +=
/// decay * master.
enum class Decay : std::uint8_t { decoupled, l2 };

/// The constants of a rule. A rule ignores those that it has no use for.
struct UpdateSettings {
  float beta1 = 0.9F, beta2 = 0.95F, eps = 1e-8F, decay = 0;
  Decay decay_kind = Decay::decoupled;
};

/// The most state tensors that any rule keeps for each element.
inline constexpr std::size_t kMostStates = 2;

/// The update of a flat range in one pass: g = coefficient * gradient, then the rule's step of
/// master and state; parameter = round(master). Elements are independent, and an element's bits do
/// not depend on alignment or length, because shard boundaries move with the number of ranks. apply
/// = 0: master and state stay, and parameter = round(master) all the same. Its `check` is in
/// kernels/common/optimizer_steps, which knows what a rule keeps.
struct OptimizerUpdate {
  static constexpr auto& kNames = EnumWords<UpdateRule>::table;
  UpdateRule rule = UpdateRule::adam;
  View gradient;  // (n) accumulation type
  View master;    // (n) f32
  /// (n) f32, or all of them bf16; as many as the rule keeps, then absent.
  std::array<View, kMostStates> state;
  View parameter;  // (n) compute type; absent when master is what forward uses
  View scalars;    // (StepScalar::count) f32
  View verdict;    // (VerdictField::count) f32
  UpdateSettings settings;
  View scratch;

  std::string_view name() const { return enum_word(rule); }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.gradient, Access::read), f(s.scalars, Access::read), f(s.verdict, Access::read);
    f(s.master, Access::update);
    for (auto& state : s.state) f(state, Access::update);
    f(s.parameter, Access::write), f(s.scratch, Access::write);
  }
};

}  // namespace tessera::kernels
