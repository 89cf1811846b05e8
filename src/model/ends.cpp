#include "model/ends.hpp"

#include <algorithm>
#include <cmath>

#include "model/tensor_parallel.hpp"

namespace tessera::model {

using namespace kernels;

namespace {

/// The first row of one of this rank's chunks of a token matrix.
std::int64_t first_token(const UnitContext& u, const ModelConfig& c, std::size_t own_chunk) {
  const TensorCut& cut = u.tensor_region().cut;
  return even_part(c.padded_vocab(), cut.first() + static_cast<std::int64_t>(own_chunk), cut.chunks)
      .begin;
}

/// out = x sqrt(C).
void scale_embeddings(UnitContext& u, const ModelConfig& c, const View& x, const View& out) {
  u.run(Scale{.x = x, .out = out, .factor = std::sqrt(static_cast<float>(c.hidden))});
}

/// The sum of a token's and a position's vectors, dropped out, at this rank's positions.
void embed(UnitContext& u, const ModelConfig& c, const TokenMatrix& token_table,
           const View& position_table, std::int64_t first_position, const View& out) {
  const Dropout dropout = u.dropout(c, DropoutSite::embedding);
  if (u.tensor_region().whole()) {
    u.run(Embed{.tokens = u.micro_batch().tokens,
                .token_table = token_table[0],
                .position_table = position_table,
                .documents = u.micro_batch().positions,
                .out = out,
                .first_position = first_position,
                .dropout = dropout});
    return;
  }
  ChunkSum tokens(u, c.hidden, {}, DType::f32);  // all terms but one are zero
  for (std::size_t i = 0; i < token_table.size(); ++i) {
    u.run(Embed{.tokens = u.micro_batch().tokens,
                .token_table = token_table[i],
                .position_table = {},
                .out = tokens.part(i),
                .first_token = first_token(u, c, i),
                .vocab = c.padded_vocab()});
  }
  tokens.start();
  u.run(AddPositions{.x = tokens.finish(),
                     .position_table = position_table,
                     .documents = u.micro_batch().positions,
                     .out = out,
                     .first_position = first_position + u.positions().begin,
                     .dropout = dropout});
}

}  // namespace

void embed_forward(UnitContext& u, const ModelConfig& c, const TokenMatrix& token_table,
                   const View& position_table, std::int64_t first_position, Carry& out) {
  out = {.resid = u.residual(Keep::input, c.hidden), .pending = {}};
  if (!c.scaled_embeddings)
    return embed(u, c, token_table, position_table, first_position, out.resid);
  const View sum = u.residual(Keep::transient, c.hidden);
  embed(u, c, token_table, position_table, first_position, sum);
  scale_embeddings(u, c, sum, out.resid);
}

void embed_backward(UnitContext& u, const ModelConfig& c, const View& d,
                    const TokenMatrix& d_token_table, const View& d_position_table,
                    Write token_write, Write position_write) {
  // Only the positions that the sequence has are reached; the others' gradient is zero.
  const View reached = d_position_table
                           ? d_position_table.row_range(
                                 0, std::min(u.micro_batch().sequence, d_position_table.rows()))
                           : View{};
  View local = d;
  if (c.scaled_embeddings) {
    local = u.residual(Keep::transient, c.hidden);
    scale_embeddings(u, c, d, local);
  }
  const View all = gather_positions(u, local, Keep::transient);
  for (std::size_t i = 0; i < d_token_table.size(); ++i) {
    u.run(EmbedBackward{.tokens = u.micro_batch().tokens,
                        .d = all,
                        .d_token_table = d_token_table[i],
                        .d_position_table = i == 0 ? reached : View{},
                        .documents = u.micro_batch().positions,
                        .token_write = token_write,
                        .position_write = position_write,
                        .first_token = first_token(u, c, i),
                        .vocab = c.padded_vocab(),
                        .dropout = u.dropout_from(0, c, DropoutSite::embedding)});
  }
}

namespace {

struct FinalNorm {
  View sum, stats;  // at this rank's positions
  View h;           // at all positions
};

FinalNorm final_norm(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in) {
  FinalNorm n{.sum = in.pending ? u.residual(Keep::transient, c.hidden) : in.resid,
              .stats = u.tensor(Keep::transient, DType::f32, {in.resid.rows(), 2}),
              .h = u.residual(Keep::transient, c.hidden)};
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
  n.h = gather_positions(u, n.h, Keep::transient);
  return n;
}

/// So many rows of the micro-batch have logits at once, whatever the layout.
std::vector<Range> row_groups(const UnitContext& u, std::int64_t rows) {
  const std::int64_t most = u.logit_rows > 0 ? u.logit_rows : rows;
  std::vector<Range> groups;
  for (std::int64_t r = 0; r < rows; r += most) groups.push_back({r, std::min(rows, r + most)});
  return groups;
}

/// What the head needs of some rows.
struct HeadRows {
  View h;                // (rows, C)
  View targets, losses;  // (rows)
};
HeadRows rows_of(const UnitContext& u, const View& h, const View& losses, Range rows) {
  return {.h = h.row_range(rows.begin, rows.count()),
          .targets = u.micro_batch().targets.range(rows.begin, rows.count()),
          .losses = losses.range(rows.begin, rows.count())};
}

/// Logits (rows, padded V of the chunk) of each of this rank's chunks.
std::vector<View> logits_of(UnitContext& u, const HeadWeights& w, const View& h) {
  std::vector<View> logits;
  for (const View& matrix : w.matrix) {
    logits.push_back(u.tensor(Keep::transient, u.compute(), {h.rows(), matrix.rows()}));
    u.run(Linear{.x = h, .weight = matrix, .y = logits.back()});
  }
  return logits;
}

/// Losses of some rows; if a scale is given, they are those that are minimised, and logits become
/// their gradient.
void classify(UnitContext& u, const ModelConfig& c, const std::vector<View>& logits,
              const HeadRows& of, const View& scale) {
  const TensorRegion& tensor = u.tensor_region();
  const LossTerms terms = scale ? u.loss_terms : LossTerms{};
  if (tensor.whole()) {
    u.run(Classify{.logits = logits[0],
                   .targets = of.targets,
                   .losses = of.losses,
                   .scale = scale,
                   .vocab = c.vocab,
                   .soft_cap = c.logit_soft_cap,
                   .terms = terms});
    return;
  }
  const std::int64_t rows = of.losses.elements();
  View stats = u.tensor(Keep::transient, DType::f32, {tensor.cut.own(), rows, kPartStats});
  for (std::size_t i = 0; i < logits.size(); ++i) {
    u.run(ClassifyPart{.logits = logits[i],
                       .targets = of.targets,
                       .stats = stats.row_range(static_cast<std::int64_t>(i) * rows, rows),
                       .first_token = first_token(u, c, i),
                       .vocab = c.vocab,
                       .soft_cap = c.logit_soft_cap});
  }
  if (tensor.cut.ranks > 1) {
    const View all = u.tensor(Keep::transient, DType::f32, {tensor.cut.chunks, rows, kPartStats});
    tensor.run(comm::AllGather{.shard = stats, .full = all});
    stats = all;
  }
  const View lse = u.tensor(Keep::transient, DType::f32, {rows});
  u.run(ClassifyLoss{.stats = stats,
                     .targets = of.targets,
                     .losses = of.losses,
                     .lse = lse,
                     .vocab = c.vocab,
                     .terms = terms});
  for (std::size_t i = 0; scale && i < logits.size(); ++i) {
    u.run(ClassifyGradient{.logits = logits[i],
                           .targets = of.targets,
                           .lse = lse,
                           .scale = scale,
                           .first_token = first_token(u, c, i),
                           .vocab = c.vocab,
                           .soft_cap = c.logit_soft_cap,
                           .terms = terms});
  }
}

}  // namespace

View head_logits(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in) {
  const View h = final_norm(u, c, w, in).h;
  View logits = logits_of(u, w, h.matrix())[0];
  logits = logits.reshaped({u.micro_batch().batch, u.micro_batch().sequence, logits.cols()});
  if (c.logit_soft_cap == 0) return logits;
  const View capped = u.activation(Keep::transient, logits.cols());
  u.run(SoftCap{.x = logits, .out = capped, .cap = c.logit_soft_cap});
  return capped;
}

void head_loss(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in,
               const View& losses) {
  const View h = final_norm(u, c, w, in).h;
  for (const Range rows : row_groups(u, h.rows())) {
    const HeadRows of = rows_of(u, h, losses, rows);
    classify(u, c, logits_of(u, w, of.h), of, {});
  }
}

View head_loss_backward(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in,
                        const View& losses, const View& scale, const HeadWeights& g, Write write) {
  const FinalNorm n = final_norm(u, c, w, in);
  ChunkSum d_h(u, c.hidden);
  Write write_matrix = write;
  for (const Range rows : row_groups(u, n.h.rows())) {
    const HeadRows of = rows_of(u, n.h, losses, rows);
    const std::vector<View> logits = logits_of(u, w, of.h);
    classify(u, c, logits, of, scale);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      u.run(LinearBackwardInput{.d_y = logits[i],
                                .weight = w.matrix[i],
                                .d_x = d_h.part(i).row_range(rows.begin, rows.count())});
    }
    if (rows.end == n.h.rows()) d_h.start();
    for (std::size_t i = 0; i < logits.size(); ++i) {
      u.run(LinearBackwardWeight{
          .d_y = logits[i], .x = of.h, .d_weight = g.matrix[i], .write = write_matrix});
    }
    write_matrix = Write::add;
  }
  PartialGradients partial(u, write);
  const View d_sum = norm_backward(u, c, partial,
                                   {.d_out = d_h.finish(),
                                    .d_resid = {},
                                    .sum = n.sum,
                                    .weight = w.norm_w,
                                    .stats = n.stats,
                                    .d_weight = g.norm_w,
                                    .d_bias = g.norm_b});
  partial.finish();
  return d_sum;
}

View carry_sum(UnitContext& u, const ModelConfig& c, Carry in) {
  if (!in.pending) return in.resid;
  const View sum = u.residual(Keep::transient, c.hidden);
  u.run(AddPending{.resid = in.resid,
                   .pending = in.pending,
                   .sum = sum,
                   .dropout = u.dropout(c, DropoutSite::incoming)});
  return sum;
}

}  // namespace tessera::model
