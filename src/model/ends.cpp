#include "model/ends.hpp"

namespace tessera::model {

using namespace kernels;

void embed_forward(UnitContext& u, const ModelConfig& c, const View& token_table,
                   const View& position_table, std::int64_t first_position, Carry& out) {
  out = {.resid = u.activation(Keep::input, c.hidden), .pending = {}};
  u.run(Embed{.tokens = u.micro_batch().tokens,
              .token_table = token_table,
              .position_table = position_table,
              .out = out.resid,
              .first_position = first_position,
              .dropout = u.dropout(c, DropoutSite::inner)});
}

void embed_backward(UnitContext& u, const ModelConfig& c, const View& d, const View& d_token_table,
                    const View& d_position_table, Write token_write, Write position_write) {
  // Only the positions that the sequence has are reached; the others' gradient is zero.
  const View reached =
      d_position_table ? d_position_table.row_range(0, u.micro_batch().sequence) : View{};
  u.run(EmbedBackward{.tokens = u.micro_batch().tokens,
                      .d = d,
                      .d_token_table = d_token_table,
                      .d_position_table = reached,
                      .token_write = token_write,
                      .position_write = position_write,
                      .dropout = u.dropout(c, DropoutSite::inner)});
}

namespace {

struct FinalNorm {
  View sum, h, stats;
};

FinalNorm final_norm(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in) {
  FinalNorm n{.sum = in.pending ? u.activation(Keep::transient, c.hidden) : in.resid,
              .h = u.activation(Keep::transient, c.hidden),
              .stats = u.tensor(Keep::transient, DType::f32, {in.resid.rows(), 2})};
  u.run(AddNorm{.resid = in.resid,
                .pending = in.pending,
                .weight = w.norm_w,
                .bias = w.norm_b,
                .sum = in.pending ? n.sum : View{},
                .out = n.h,
                .stats = n.stats,
                .kind = c.norm,
                .eps = c.norm_eps,
                .dropout = in.pending ? u.dropout(c, DropoutSite::incoming) : Dropout{}});
  return n;
}

View logits_of(UnitContext& u, const ModelConfig& c, const HeadWeights& w, const View& h) {
  const View logits = u.activation(Keep::transient, c.padded_vocab());
  u.run(Linear{.x = h, .weight = w.matrix, .y = logits});
  return logits;
}

}  // namespace

View head_logits(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in) {
  return logits_of(u, c, w, final_norm(u, c, w, in).h);
}

void head_loss(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in,
               const View& losses) {
  u.run(Classify{.logits = head_logits(u, c, w, in).matrix(),
                 .targets = u.micro_batch().targets,
                 .losses = losses,
                 .vocab = c.vocab});
}

View head_loss_backward(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in,
                        const View& losses, const View& scale, const HeadWeights& g, Write write) {
  const FinalNorm n = final_norm(u, c, w, in);
  const View logits = logits_of(u, c, w, n.h);
  u.run(Classify{.logits = logits.matrix(),
                 .targets = u.micro_batch().targets,
                 .losses = losses,
                 .scale = scale,
                 .vocab = c.vocab});
  const View d_h = u.activation(Keep::transient, c.hidden);
  u.run(LinearBackwardInput{.d_y = logits, .weight = w.matrix, .d_x = d_h});
  u.run(LinearBackwardWeight{.d_y = logits, .x = n.h, .d_weight = g.matrix, .write = write});
  const View d_sum = u.activation(Keep::transient, c.hidden);
  u.run(NormBackward{.d_out = d_h,
                     .sum = n.sum,
                     .weight = w.norm_w,
                     .stats = n.stats,
                     .d_sum = d_sum,
                     .d_weight = g.norm_w,
                     .d_bias = g.norm_b,
                     .kind = c.norm,
                     .write = write});
  return d_sum;
}

}  // namespace tessera::model
