// Attention where ranks divide each sequence among them ("context parallelism").
#pragma once

#include "model/context.hpp"

namespace tessera::model {

/// A gradient of which each of this rank's shares of sequences gives a part; the parts are added in
/// a tree. With one share the part is the gradient.
class ShareSum {
 public:
  /// `gradient`: of any shape, dense; or absent, as all its parts are then.
  ShareSum(UnitContext& u, const View& gradient);
  View part(std::int64_t share) const;
  /// How to write the first summand of a part of a gradient that is to be written so.
  kernels::Write write_to(kernels::Write gradient) const {
    return parts_ ? kernels::Write::overwrite : gradient;
  }
  void finish(kernels::Write write);

 private:
  UnitContext& u_;
  View gradient_, parts_;  // (shares, elements) f32, or absent
};

/// Turns x (B, T, columns) by its tokens' positions. Of what makes a Rope: all but x, documents and
/// positions.
void rotate(UnitContext& u, kernels::Rope rope, const View& x);

/// Attention of this rank's queries to all keys that they may see, wherever those are. q, k, v and
/// out are (B, T, columns) of the micro-batch as this rank has it, lse B T numbers of each head in
/// an order that attend_backward() knows. Where sequences are whole this is the operation itself.
/// ContextKind::heads needs heads and kv heads that divide over the ranks.
void attend(UnitContext& u, const kernels::Attention& attention);

/// Its gradients: d_q, d_k and d_v of this rank's tokens, what other ranks' queries give included.
void attend_backward(UnitContext& u, const kernels::AttentionBackward& attention);

}  // namespace tessera::model
