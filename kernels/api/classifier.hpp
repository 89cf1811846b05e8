// Softmax, cross-entropy and its gradient in one pass over the logits, in place.
#pragma once

#include "kernels/api/access.hpp"

namespace tessera::kernels {

/// losses[i] = logsumexp(logits[i, :V]) - logits[i, target]; with `scale` present logits become
/// their gradient, (softmax - onehot) * scale. Columns V .. are padding: they count as -inf and
/// their gradient is 0. A target below 0 is ignored: loss 0, gradient 0.
struct Classify {
  static constexpr const char* kName = "classify";
  View logits;   // (rows, padded V), compute type, changed in place when scale is present
  View targets;  // (rows) i32
  View losses;   // (rows) f32
  View scale;    // (1) f32: loss scale / valid tokens of the global batch; absent: losses only
  std::int64_t vocab = 0;  // V, without padding
  View scratch;

  template <typename Self, typename F>
  static void visit(Self& s, F&& f) {
    f(s.logits, s.scale ? Access::update : Access::read), f(s.targets, Access::read);
    f(s.losses, Access::write), f(s.scale, Access::read), f(s.scratch, Access::write);
  }
};

}  // namespace tessera::kernels
