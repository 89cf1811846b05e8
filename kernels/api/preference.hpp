// Losses of pairs of answers to one prompt, of which one was chosen and the other rejected: by what
// the model and a frozen reference model say of them, or by the scores that a reward model gives.
#pragma once

#include "kernels/api/access.hpp"

namespace tessera::kernels {

enum class PreferenceKind : std::uint8_t { none, dpo, ipo, reward };

/// With r the sum over an answer's targets of log p - log p_reference, and h = r of the chosen
/// answer less r of the rejected one, a pair's loss is
///   dpo: -(1 - s) log sigmoid(b h) - s log sigmoid(-b h)
///   ipo: (h - 1 / (2 b))^2
///   reward: that of dpo with b = 1, r being the score of the answer (Bradley & Terry 1952; Ouyang
///           et al. 2022, equation 1)
/// Direct preference optimisation (Rafailov et al. 2023, equation 7); with s > 0 for choices of
/// which that share is wrong (Mitchell 2023, "A note on DPO with noisy preferences", equation 3);
/// and identity preference optimisation (Azar et al. 2023, equation 17). b r is an answer's reward.
struct PreferenceTerms {
  PreferenceKind kind = PreferenceKind::none;
  float beta = 0;             // b
  float label_smoothing = 0;  // s, below 1/2

  explicit operator bool() const { return kind != PreferenceKind::none; }
  /// Whether r is by how much the model differs from a reference model.
  bool relative() const { return kind == PreferenceKind::dpo || kind == PreferenceKind::ipo; }
  bool operator==(const PreferenceTerms&) const = default;
};

/// What is said of a pair beside its loss: r of the chosen answer, r of the rejected one, and 1
/// where the former is more, else 0. All are 0 where the pair does not count.
inline constexpr std::int64_t kPreferenceStats = 3;

/// The losses of P pairs and, with `scale` present, the slopes that make the gradients of their
/// targets' losses those of the pairs' losses: of each -log p the derivative of its pair's loss,
/// times scale. Samples 2 i and 2 i + 1 are a pair, the chosen answer first. A pair without any
/// target that counts does not count: its loss and slopes are 0.
struct PreferenceLoss {
  static constexpr const char* kName = "preference_loss";
  View target_losses;  // (2 P, T) f32: -log p of each target, 0 where it does not count; of
                       // rewards (2 P, 1), what Score has made
  View targets;        // (2 P T) i32: below 0 where it does not count
  View reference;   // (2 P) f64: log p_reference of a sample's targets, in sum; absent of rewards
  View scale;       // (1) f32: loss scale / pairs of the global batch; absent: losses only
  View losses;      // (2 P) f32: of a pair in the place of its chosen sample, else 0
  View slopes;      // (2 P T) f32; absent where scale is
  View statistics;  // (kPreferenceStats, P) f32
  PreferenceTerms terms;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.target_losses, Access::read), f(s.targets, Access::read), f(s.reference, Access::read),
        f(s.scale, Access::read), f(s.losses, Access::write), f(s.slopes, Access::write),
        f(s.statistics, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const PreferenceLoss&) const = default;
};

/// The score of each sample, the first output of its row, with its sign turned: in the place of
/// losses of targets, for PreferenceLoss.
struct Score {
  static constexpr const char* kName = "score";
  View logits;   // (R, outputs)
  View targets;  // (R) i32: below 0 where the sample does not count
  View losses;   // (R) f32; 0 where it does not count
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.logits, Access::read), f(s.targets, Access::read), f(s.losses, Access::write),
        f(s.scratch, Access::write);
  }
  bool operator==(const Score&) const = default;
};

/// The gradient of the outputs from that of what Score has made of them, which PreferenceLoss
/// writes: other outputs than the first have none.
struct ScoreGradient {
  static constexpr const char* kName = "score_gradient";
  View slopes;  // (R) f32
  View logits;  // (R, outputs): becomes the gradient
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.slopes, Access::read), f(s.logits, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const ScoreGradient&) const = default;
};

}  // namespace tessera::kernels
