// The two ends of the model: embedding and head.
#pragma once

#include "model/context.hpp"

namespace tessera::model {

/// A rank's chunks of a token matrix (rows of chunk, C), or of its gradient.
using TokenMatrix = std::vector<View>;

/// resid = dropout(token_table[tokens] + position_table[first_position ...]), nothing pending.
/// position_table may be absent.
void embed_forward(UnitContext& u, const ModelConfig& c, const TokenMatrix& token_table,
                   const View& position_table, std::int64_t first_position, Carry& out);
/// `write` is for the positions; the token table's gradient is added to when its matrix is tied to
/// the head's.
void embed_backward(UnitContext& u, const ModelConfig& c, const View& d,
                    const TokenMatrix& d_token_table, const View& d_position_table,
                    kernels::Write token_write, kernels::Write position_write);

struct HeadWeights {
  View norm_w, norm_b;  // (C)
  TokenMatrix matrix;   // (padded V, C)
};
/// Logits (B, T, padded V) of the carry, in the compute type, on one tensor rank.
View head_logits(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in);
/// Per-token losses (B T) f32 of the micro-batch, without UnitContext::loss_terms, so that they
/// compare between runs.
void head_loss(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in,
               const View& losses);
/// Losses, with UnitContext::loss_terms, and at once the gradients: the logits become their
/// gradient in place, so one buffer serves, of the logits of UnitContext::logit_rows rows, and
/// nothing is saved (Wijmans et al. 2024, "Cut Your Losses in Large-Vocabulary Language Models",
/// without its own kernels). `scale` (1) f32 multiplies the loss. Returns the gradient of the
/// carry's sum.
View head_loss_backward(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in,
                        const View& losses, const View& scale, const HeadWeights& grads,
                        kernels::Write write);

/// The sum of a carry, for the next pipeline stage: (B, T, C), computed as the next norm would
/// compute it, so that a stage boundary changes no bit.
View carry_sum(UnitContext& u, const ModelConfig& c, Carry in);

}  // namespace tessera::model
