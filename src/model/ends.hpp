// The two ends of the model: embedding and head.
#pragma once

#include "model/context.hpp"

namespace tessera::model {

/// A rank's chunks of a token matrix (rows of chunk, C), or of its gradient.
using TokenMatrix = std::vector<View>;

/// Of the embedding, or their gradients. What a model does not have is absent.
struct EmbedWeights {
  TokenMatrix tokens;   // (padded V, C)
  View positions;       // (positions, C)
  View norm_w, norm_b;  // (C)
};
/// Picks the views out of the parameters of units, others among them.
EmbedWeights embed_weights(std::span<const UnitViews> units);

/// The same of gradients: positions that are frozen have none.
EmbedWeights embed_gradients(std::span<const UnitViews> units);

/// What backward needs of the embedding's norm: what it normalised, and its statistics.
struct EmbedSaved {
  View sum, stats;
};

/// resid = dropout(norm(tokens' vectors + those of their positions)), nothing pending.
void embed_forward(UnitContext& u, const ModelConfig& c, const EmbedWeights& w, EmbedSaved& saved,
                   Carry& out);
/// `token_write` is for the token table, whose gradient is added to when its matrix is tied to the
/// head's; `write` for the others.
void embed_backward(UnitContext& u, const ModelConfig& c, const EmbedWeights& w,
                    const EmbedSaved& saved, const View& d, const EmbedWeights& grads,
                    kernels::Write token_write, kernels::Write write);

/// Of the head, or their gradients. What a model does not have is absent.
struct HeadWeights {
  View norm_w, norm_b;              // of the last layer's vectors (C)
  View dense_w, dense_b;            // (C', C), (C')
  View dense_norm_w, dense_norm_b;  // (C')
  TokenMatrix matrix;               // (padded outputs, C')
  std::vector<View> bias;           // its chunks, (padded outputs)
  View value_w, value_b;            // (1, C), (1)
};
/// Picks the views out of the parameters of units, others among them: the matrix is the token
/// table's where there is none of the head's own.
HeadWeights head_weights(std::span<const UnitViews> units);

/// Logits (B, targets of a sample, padded outputs) of the carry, in the compute type, on one tensor
/// rank.
View head_logits(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in);
/// Logits after each sample's last token (MicroBatch::counted): (chunks, B, outputs of a chunk)
/// f32, of all tensor ranks' chunks, of which some may have fewer outputs than there is room for.
void head_next_logits(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in,
                      const View& out);
/// Values (B T) f32 of the states that the carry's tokens are in, each the last of its own.
void head_values(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in,
                 const View& out);
/// Of pooled outputs the first of each sample, with its sign turned, (B) f32; 0 where the sample's
/// target does not count.
void head_scores(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in,
                 const View& out);
/// The losses of the micro-batch's targets, f32, without UnitContext::loss_terms, so that they
/// compare between runs. With UnitContext::preference the losses of pairs of samples (B), which
/// have its terms.
void head_loss(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in,
               const View& losses);
/// Losses, with UnitContext::loss_terms, and at once the gradients: the logits become their
/// gradient in place, so one buffer serves, of the logits of UnitContext::logit_rows rows, and
/// nothing is saved (Wijmans et al. 2024, "Cut Your Losses in Large-Vocabulary Language Models",
/// without its own kernels). Where samples are pairs (UnitContext::preference), or targets were
/// drawn (UnitContext::policy), logits are computed twice if there are more rows: what a target
/// weighs follows from the losses of all of its pair, or from how good it was. UnitContext::scale
/// multiplies the loss. Returns the gradient of the carry's sum.
View head_loss_backward(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in,
                        const View& losses, const HeadWeights& grads, kernels::Write write);

/// The sum of a carry, for the next pipeline stage: (B, T, C), computed as the next norm would
/// compute it, so that a stage boundary changes no bit.
View carry_sum(UnitContext& u, const ModelConfig& c, Carry in);

}  // namespace tessera::model
