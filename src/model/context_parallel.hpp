// Attention and positions, wherever the keys are: with whole sequences, where ranks divide each
// among them ("context parallelism").
#pragma once

#include "model/context.hpp"

namespace tessera::model {

/// Turns x (B, T, columns) by its tokens' positions. Of what makes a Rope: all but x, documents,
/// positions and how many of them a sequence has.
void rotate(UnitContext& u, kernels::Rope rope, const View& x);

/// Attention of this rank's queries to all keys that they may see, wherever those are. q, k, v and
/// out are (B, T, columns) of the micro-batch as this rank has it, lse B T numbers of each head in
/// an order that attend_backward() knows. Where sequences are whole this is the operation itself.
/// ContextKind::heads needs heads and kv heads that divide over the ranks, ContextKind::ring ranks
/// of one share each.
void attend(UnitContext& u, const kernels::Attention& attention);

/// Its gradients: d_q, d_k and d_v of this rank's tokens, what other ranks' queries give included.
void attend_backward(UnitContext& u, const kernels::AttentionBackward& attention);

}  // namespace tessera::model
