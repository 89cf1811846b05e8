// The verdict on a step, the optimizer's update of a flat shard, and the scalars that both read.
#pragma once

#include "core/enums.hpp"
#include "core/exact_sum.hpp"
#include "kernels/api/access.hpp"

namespace tessera::kernels {

/// Indices into the step's scalars, f32, written by the host before the step starts.
enum class StepScalar : std::uint8_t {
  loss_gradient,  // loss scale / targets of the global batch: Classify's scale
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

/// Decides the step from the norm's exact sum (Pascanu et al. 2013 for clipping). Gradients were
/// made with the loss scaled, and divided by `all_targets` where they should be by those that count
/// (at least 1): factor = unscale * all_targets / targets, norm = sqrt(sum) * factor; apply = norm
/// is finite; coefficient = factor * min(1, clip_norm / (norm + 1e-6)), no clipping at clip_norm 0.
struct Verdict {
  static constexpr const char* kName = "verdict";
  View squares;  // exact accumulator (core/exact_sum.hpp) of the gradients' squares over all ranks
  View targets;  // (1) i64: how many count, over all ranks; absent: all do
  View scalars;  // (StepScalar::count) f32
  View verdict;  // (VerdictField::count) f32
  std::int64_t all_targets = 1;
  double clip_norm = 0;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.squares, Access::read), f(s.targets, Access::read), f(s.scalars, Access::read),
        f(s.verdict, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const Verdict&) const = default;
};

/// What an optimizer does to one element; kernels/common/optimizer_steps has the arithmetic.
enum class UpdateRule : std::uint8_t {
  /// Adam (Kingma and Ba 2015), or AdamW where decay is decoupled (Loshchilov and Hutter 2019),
  /// bias-corrected as in PyTorch; m and v are moments of g:
  ///   master -= lr / c1 * m / (sqrt(v) / sqrt(c2) + eps).
  adam,
  /// The first pass of LAMB (You et al. 2020, algorithm 2, without bias correction): m and v become
  /// moments of g, and the tensor's sums grow by the squares of master and of
  ///   u = m / sqrt(v + eps) + decay * master.
  lamb_moments,
  /// Its second pass, of the same u, once the sums are those of all elements of the tensor:
  ///   master -= lr * c * u,  c = |master| / |u|, at least trust_min and at most trust_max; 1 where
  /// either norm is 0.
  lamb,
  /// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", program 1), with
  /// decoupled decay; m is a moment of g by beta2:
  ///   master -= lr * (sign(beta1 * m + (1 - beta1) * g) + decay * master),  with m as it was.
  lion,
  /// Gradient descent with momentum, as in PyTorch without dampening; g += decay * master first:
  ///   m = beta1 * m + g,  master -= lr * m;  nesterov: master -= lr * (g + beta1 * m).
  sgd,
  /// What Muon (Jordan et al. 2024) does before matrices are made orthogonal:
  ///   m += (1 - beta1) * (g - m),  direction = m;  nesterov: direction = g + beta1 * (m - g).
  muon_moment,
  /// And after that, with decoupled decay; direction is what was made of it:
  ///   master -= lr * (direction + decay * master).
  muon,
  /// What 1-bit Adam (Tang et al. 2021, algorithm 1) does once v is frozen and m, which is momentum
  /// that came compressed, is what all ranks have; with decoupled decay:
  ///   master -= lr * (m / (sqrt(v) + eps) + decay * master).
  frozen_adam,
  /// Likewise 1-bit LAMB (Li et al. 2021, "1-bit LAMB", algorithm 1), tensor by tensor:
  ///   master -= lr * c * (m / sqrt(v + eps) + decay * master),  c = c_avg * r, its two factors.
  frozen_lamb,
};

/// Whether a rule does all of an update; or what comes before a tensor's sums are known, or what
/// follows; or makes the direction of each element, or moves weights along what whole matrices of
/// these have become; or moves weights by state that it does not change.
enum class UpdatePass : std::uint8_t { only, first, second, direct, move, by_state };
constexpr UpdatePass pass_of(UpdateRule rule) {
  switch (rule) {
    case UpdateRule::adam:
    case UpdateRule::lion:
    case UpdateRule::sgd: return UpdatePass::only;
    case UpdateRule::lamb_moments: return UpdatePass::first;
    case UpdateRule::lamb: return UpdatePass::second;
    case UpdateRule::muon_moment: return UpdatePass::direct;
    case UpdateRule::muon: return UpdatePass::move;
    case UpdateRule::frozen_adam:
    case UpdateRule::frozen_lamb: return UpdatePass::by_state;
  }
  return UpdatePass::only;
}
/// Whether a pass reads the gradient and changes state, and whether it changes weights.
constexpr bool reads_gradient(UpdatePass pass) {
  return pass != UpdatePass::second && pass != UpdatePass::move && pass != UpdatePass::by_state;
}
constexpr bool moves_weights(UpdatePass pass) {
  return pass != UpdatePass::first && pass != UpdatePass::direct;
}
constexpr bool has_sums(UpdatePass pass) {
  return pass == UpdatePass::first || pass == UpdatePass::second;
}
constexpr bool has_direction(UpdatePass pass) {
  return pass == UpdatePass::direct || pass == UpdatePass::move;
}

}  // namespace tessera::kernels

template <>
struct tessera::EnumWords<tessera::kernels::UpdateRule> {
  using enum tessera::kernels::UpdateRule;
  static constexpr std::array table = {std::pair{adam, "adam"},
                                       std::pair{lamb_moments, "lamb_moments"},
                                       std::pair{lamb, "lamb"},
                                       std::pair{lion, "lion"},
                                       std::pair{sgd, "sgd"},
                                       std::pair{muon_moment, "muon_moment"},
                                       std::pair{muon, "muon"},
                                       std::pair{frozen_adam, "frozen_adam"},
                                       std::pair{frozen_lamb, "frozen_lamb"}};
};

namespace tessera::kernels {

/// How weights decay: directly, master *= 1 - lr * decay (decoupled), or through the gradient, g +=
/// decay * master.
enum class Decay : std::uint8_t { decoupled, l2 };

/// The constants of a rule. A rule ignores those that it has no use for.
struct UpdateSettings {
  float beta1 = 0.9F, beta2 = 0.95F, eps = 1e-8F, decay = 0;
  Decay decay_kind = Decay::decoupled;
  float trust_min = 0.01F, trust_max = 10;
  float lr_factor = 1;  // of the step's lr
  float average_decay = 0;
  bool nesterov = false;  // of sgd and muon_moment
  bool operator==(const UpdateSettings&) const = default;
};

/// The most state tensors that any rule keeps for each element.
inline constexpr std::size_t kMostStates = 2;

/// What a tensor's first pass adds up for its second: the exact sums of the squares of master
/// weights and of u.
inline constexpr std::int64_t kTensorWords = std::int64_t{2} * kExactSumWords;

/// The update of a flat range: g = coefficient * gradient, then the rule's step of
/// master and state; parameter = round(master). A first pass changes state and sums, a second one
/// master and parameter. Elements are independent, and an element's bits do
/// not depend on alignment or length, because shard boundaries move with the number of ranks. Where
/// there is an average of weights it follows them: average += (1 - average_decay) * (master -
/// average). apply = 0: master, state and average stay, directions are 0, and parameter =
/// round(master) all the same. Its `check` is in
/// kernels/common/optimizer_steps, which knows what a rule keeps.
struct OptimizerUpdate {
  static constexpr auto& kNames = EnumWords<UpdateRule>::table;
  UpdateRule rule = UpdateRule::adam;
  View gradient;  // (n) accumulation type; absent where the pass reads none
  View master;    // (n) f32
  /// (n) f32, or all of them bf16; as many as the rule keeps, then absent.
  std::array<View, kMostStates> state;
  /// (n) f32, bf16 or f16, where a pass makes directions or moves weights along them; absent where
  /// it makes them of elements that another rank counts, and where it moves what has none, such as
  /// padding, which then decays alone.
  View direction;
  View average;    // (n) f32; absent where none is kept, and where weights do not move
  View parameter;  // (n) compute type; absent as average is, and when master is what forward uses
  /// (kTensorWords) i64, of the tensor that the range is of, where there are two passes; absent in
  /// a first pass over elements that another rank counts.
  View sums;
  /// (1) f32 each, of the tensor that the range is of: c_avg and r of frozen_lamb; absent else.
  std::array<View, 2> factors;
  View scalars;  // (StepScalar::count) f32
  View verdict;  // (VerdictField::count) f32
  UpdateSettings settings;
  View scratch;

  std::string_view name() const { return enum_word(rule); }
  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    const UpdatePass pass = pass_of(s.rule);
    const bool begins = reads_gradient(pass), moves = moves_weights(pass);
    f(s.gradient, Access::read), f(s.scalars, Access::read), f(s.verdict, Access::read);
    f(s.master, moves ? Access::update : Access::read);
    for (auto& state : s.state) f(state, begins ? Access::update : Access::read);
    f(s.sums, begins ? Access::update : Access::read), f(s.average, Access::update);
    for (auto& factor : s.factors) f(factor, Access::read);
    f(s.direction, begins ? Access::write : Access::read);
    f(s.parameter, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const OptimizerUpdate&) const = default;
};

/// What 1-bit LAMB (Li et al. 2021) does with each tensor's ratios in warm-up, where its sums are
/// those of all elements: average = beta3 average + (1 - beta3) c, c as UpdateRule::lamb has it.
/// apply = 0: it stays.
struct AverageTrust {
  static constexpr const char* kName = "average_trust";
  View sums;     // (n, kTensorWords) i64, dense
  View average;  // (n) f32, by tensor
  View verdict;  // (VerdictField::count) f32
  float beta3 = 0.9F, trust_min = 0.01F, trust_max = 10;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.sums, Access::read), f(s.average, Access::update), f(s.verdict, Access::read),
        f(s.scratch, Access::write);
  }
  bool operator==(const AverageTrust&) const = default;
};

/// Behind warm-up its second moments go on beside those that updates are by: with g = coefficient *
/// gradient, moment = beta2 moment + (1 - beta2) g^2, each product rounded as lamb_moments rounds
/// it; and `largest`, of all elements that are counted, grows to the largest frozen / moment, as
/// the bits of that f32 (which order as the numbers do), 0 where frozen is 0. The order of elements
/// changes nothing. apply = 0: both stay.
struct MomentRatio {
  static constexpr const char* kName = "moment_ratio";
  View gradient;  // (n) f32
  View moment;    // (n) f32
  View frozen;    // (n) f32
  View largest;   // (1) i64; absent where another rank counts the elements
  View verdict;   // (VerdictField::count) f32
  float beta2 = 0.999F;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.gradient, Access::read), f(s.moment, Access::update), f(s.frozen, Access::read),
        f(s.largest, Access::update), f(s.verdict, Access::read), f(s.scratch, Access::write);
  }
  bool operator==(const MomentRatio&) const = default;
};

/// And each tensor's r follows its largest ratio: at most `threshold` of it away from what it was,
/// as which 0 stands for 1, then at least r_min and at most r_max. apply = 0: it stays.
struct FollowRatio {
  static constexpr const char* kName = "follow_ratio";
  View largest;  // (n) i64, by tensor, as MomentRatio has them of all ranks
  View ratio;    // (n) f32
  View verdict;  // (VerdictField::count) f32
  float threshold = 0.1F, r_min = 0.5F, r_max = 4;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.largest, Access::read), f(s.ratio, Access::update), f(s.verdict, Access::read),
        f(s.scratch, Access::write);
  }
  bool operator==(const FollowRatio&) const = default;
};

}  // namespace tessera::kernels
