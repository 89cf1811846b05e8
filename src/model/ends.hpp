// The two ends of the model: embedding and head.
#pragma once

#include "model/context.hpp"

namespace tessera::model {

/// resid = dropout(token_table[tokens] + position_table[first_position ...]), nothing pending.
/// position_table may be absent.
void embed_forward(UnitContext& u, const ModelConfig& c, const View& token_table,
                   const View& position_table, std::int64_t first_position, Carry& out);
/// `write` is for the positions; the token table's gradient is added to when its matrix is tied to
/// the head's.
void embed_backward(UnitContext& u, const ModelConfig& c, const View& d, const View& d_token_table,
                    const View& d_position_table, kernels::Write token_write,
                    kernels::Write position_write);

struct HeadWeights {
  View norm_w, norm_b;  // (C)
  View matrix;          // (padded V, C)
};
/// Logits (B, T, padded V) of the carry, in the compute type.
View head_logits(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in);
/// Per-token losses (B T) f32 of the micro-batch.
void head_loss(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in,
               const View& losses);
/// Losses and, at once, the gradients: the logits become their gradient in place, so one
/// logits-sized buffer serves and nothing is saved. `scale` (1) f32 multiplies the loss. Returns
/// the gradient of the carry's sum.
View head_loss_backward(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in,
                        const View& losses, const View& scale, const HeadWeights& grads,
                        kernels::Write write);

}  // namespace tessera::model
