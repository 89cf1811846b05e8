// Softmax, cross-entropy and its gradient: in one pass over the logits, in place, or in three where
// ranks hold parts of the vocabulary (Shoeybi et al. 2019, Megatron-LM, section 3). With a soft cap
// c (Riviere et al. 2024, Gemma 2, section 2) what is said of logits is of c tanh(logit / c), and
// gradients are those of the logits as they come.
#pragma once

#include "kernels/api/access.hpp"

namespace tessera::kernels {

/// What is learned beside the target's -log p. With lse = logsumexp(logits) a row's loss is
///   (1 - s) (-log p_target) + s mean(-log p) + z lse^2
/// with the mean over all V tokens: label smoothing s (Szegedy et al. 2016, "Rethinking the
/// Inception Architecture", section 7; PyTorch's cross_entropy) and the z-loss, which keeps lse
/// near 0 (Chowdhery et al. 2022, PaLM, section 5). Where both are 0, no bit is changed.
struct LossTerms {
  float label_smoothing = 0;  // s, below 1
  float z_loss = 0;           // z
  bool operator==(const LossTerms&) const = default;
};

/// losses[i] = logsumexp(logits[i, :V]) - logits[i, target], as LossTerms change it; with `scale`
/// present logits become their gradient times it, which without terms is (softmax - onehot) *
/// scale. Columns V .. are padding: they count as -inf and their gradient is 0. A target below 0 is
/// ignored: loss 0, gradient 0.
struct Classify {
  static constexpr const char* kName = "classify";
  View logits;             // (rows, padded V), compute type, changed in place when scale is present
  View targets;            // (rows) i32
  View losses;             // (rows) f32
  View scale;              // (1) f32: loss scale / tokens of the global batch; absent: losses only
  std::int64_t vocab = 0;  // V, without padding
  float soft_cap = 0;      // 0: none
  LossTerms terms;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.logits, s.scale ? Access::update : Access::read), f(s.targets, Access::read);
    f(s.losses, Access::write), f(s.scale, Access::read), f(s.scratch, Access::write);
  }
  bool operator==(const Classify&) const = default;
};

/// Numbers of f32 that a part of the vocabulary says of a row.
inline constexpr std::int64_t kPartStats = 4;

/// What a part of the vocabulary, tokens [first_token, first_token + Vp), says of a row: its
/// largest logit m, the sum of exp(logit - m), the target's logit (0 where the target is elsewhere)
/// and the sum of all logits. Tokens from `vocab` on are padding: they count as -inf, and not in
/// the sum of logits. A part of padding alone gives {-inf, 0, 0, 0}.
struct ClassifyPart {
  static constexpr const char* kName = "classify_part";
  View logits;   // (rows, Vp), compute type
  View targets;  // (rows) i32
  View stats;    // (rows, kPartStats) f32
  std::int64_t first_token = 0;
  std::int64_t vocab = 0;
  float soft_cap = 0;  // 0: none
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.logits, Access::read), f(s.targets, Access::read), f(s.stats, Access::write),
        f(s.scratch, Access::write);
  }
  bool operator==(const ClassifyPart&) const = default;
};

/// From the stats of all parts: losses[i] = lse[i] - target's logit, as LossTerms change it, lse =
/// logsumexp over the vocabulary; sums over parts are aligned binary trees. A target below 0 is
/// ignored: loss 0.
struct ClassifyLoss {
  static constexpr const char* kName = "classify_loss";
  View stats;    // (parts, rows, kPartStats) f32
  View targets;  // (rows) i32
  View losses;   // (rows) f32
  View lse;      // (rows) f32
  std::int64_t vocab = 0;
  LossTerms terms;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.stats, Access::read), f(s.targets, Access::read), f(s.losses, Access::write),
        f(s.lse, Access::write), f(s.scratch, Access::write);
  }
  bool operator==(const ClassifyLoss&) const = default;
};

/// A part's logits become their gradient times `scale`, which without LossTerms is (exp(logit -
/// lse) - onehot) * scale; 0 in padding and in rows whose target is ignored. Each row may have a
/// scale of its own.
struct ClassifyGradient {
  static constexpr const char* kName = "classify_gradient";
  View logits;   // (rows, Vp), compute type, changed in place
  View targets;  // (rows) i32
  View lse;      // (rows) f32
  View scale;    // (1) f32, or (rows)
  std::int64_t first_token = 0;
  std::int64_t vocab = 0;
  float soft_cap = 0;  // 0: none
  LossTerms terms;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.logits, Access::update), f(s.targets, Access::read), f(s.lse, Access::read),
        f(s.scale, Access::read), f(s.scratch, Access::write);
  }
  bool operator==(const ClassifyGradient&) const = default;
};

/// out = cap tanh(x / cap): what logits with a soft cap are.
struct SoftCap {
  static constexpr const char* kName = "soft_cap";
  View x;    // (..., C)
  View out;  // (..., C)
  float cap = 0;
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.x, Access::read), f(s.out, Access::write), f(s.scratch, Access::write);
  }
  /// A call whose views `tensor()` makes.
  template <typename Tensor>
  static SoftCap example(Tensor&& tensor) {
    return {.x = tensor(), .out = tensor(), .cap = 30};
  }
  bool operator==(const SoftCap&) const = default;
};

/// counts[target, p] += 1 for each row, p being the first of the largest of its V logits: a matrix
/// of confusion. Rows whose target is ignored count nowhere.
struct Confusion {
  static constexpr const char* kName = "confusion";
  View logits;   // (rows, padded V), compute type
  View targets;  // (rows) i32
  View counts;   // (V, V) i64, dense
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.logits, Access::read), f(s.targets, Access::read), f(s.counts, Access::update),
        f(s.scratch, Access::write);
  }
  bool operator==(const Confusion&) const = default;
};

}  // namespace tessera::kernels
