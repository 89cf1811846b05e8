// The ways in which ranks that divide sequences compute attention, each with its backward
// (ContextKind). Of what attend() and attend_backward() have, where sequences are cut.
#pragma once

#include "model/context.hpp"

namespace tessera::model {

/// Each rank gathers keys and values of all, by groups of heads.
void attend_gathered(UnitContext& u, const kernels::Attention& a);
void attend_gathered_backward(UnitContext& u, const kernels::AttentionBackward& a);

/// Keys and values of one rank after another go round.
void attend_by_ring(UnitContext& u, const kernels::Attention& a);
void attend_by_ring_backward(UnitContext& u, const kernels::AttentionBackward& a);

/// Each rank has all tokens of some heads.
void attend_by_heads(UnitContext& u, kernels::Attention a);
void attend_by_heads_backward(UnitContext& u, kernels::AttentionBackward a);

/// (samples, tokens, columns) of a micro-batch's whole sequences.
inline View all_tokens(UnitContext& u, DType type, std::int64_t columns) {
  return u.tensor(Keep::transient, type, {u.context.samples, u.context.sequence, columns});
}
/// Keys and values of this rank's tokens beside each other, (B, T, columns of both).
inline View beside(UnitContext& u, const View& k, const View& v) {
  const View both = u.activation(Keep::transient, k.cols() + v.cols());
  u.run(kernels::Convert{.x = k, .out = both.col_range(0, k.cols())});
  u.run(kernels::Convert{.x = v, .out = both.col_range(k.cols(), v.cols())});
  return both;
}
/// Rows of all shares from one order to the other.
inline kernels::OrderChunks ordered(const UnitContext& u, const View& x, const View& out,
                                    kernels::OrderChunks::To to) {
  return {.x = x.matrix(),
          .out = out.matrix(),
          .samples = u.context.samples,
          .chunks = u.context.chunks,
          .to = to};
}

}  // namespace tessera::model
