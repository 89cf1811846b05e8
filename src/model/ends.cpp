#include "model/ends.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "model/shares.hpp"
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

float token_factor(const ModelConfig& c) { return std::sqrt(static_cast<float>(c.hidden)); }

/// The sum of a token's and a position's vectors at this rank's positions, dropped out.
void embed(UnitContext& u, const ModelConfig& c, const EmbedWeights& w, const Dropout& dropout,
           const View& out) {
  const MicroBatch& batch = u.micro_batch();
  if (u.tensor_region().whole() && !c.scaled_embeddings) {
    return u.run(Embed{.tokens = batch.tokens,
                       .token_table = w.tokens[0],
                       .position_table = w.positions,
                       .documents = batch.positions,
                       .cached = batch.cached,
                       .out = out,
                       .dropout = dropout});
  }
  ChunkSum tokens(u, c.hidden, {}, DType::f32);  // all terms but one are zero
  for (std::size_t i = 0; i < w.tokens.size(); ++i) {
    u.run(Embed{.tokens = batch.tokens,
                .token_table = w.tokens[i],
                .position_table = {},
                .out = tokens.part(i),
                .first_token = first_token(u, c, i),
                .vocab = c.padded_vocab()});
  }
  tokens.start();
  View x = tokens.finish();
  if (c.scaled_embeddings) {
    const View scaled = u.tensor(Keep::transient, DType::f32, {x.extent(0), x.extent(1), c.hidden});
    u.run(Scale{.x = x, .out = scaled, .factor = token_factor(c)});
    x = scaled;
  }
  u.run(AddPositions{.x = x,
                     .position_table = w.positions,
                     .documents = batch.positions,
                     .cached = batch.cached,
                     .out = out,
                     .first_position = u.positions().begin,
                     .dropout = dropout});
}

/// The first unit of a kind; nullptr if there is none.
const UnitViews* find(std::span<const UnitViews> units, UnitKind kind) {
  const auto found =
      std::ranges::find_if(units, [&](const UnitViews& v) { return v.unit->kind == kind; });
  return found == units.end() ? nullptr : &*found;
}

/// A parameter that is whole, "<layer>.<local>"; absent if the unit is, or has none of that name.
View whole(const UnitViews* unit, std::string_view local) {
  if (unit == nullptr || !unit->unit->has(local)) return {};
  return unit->params[unit->unit->index_of(local)][0];
}

/// The chunks of the only parameter of all units of a kind.
std::vector<View> chunks_of(std::span<const UnitViews> units, UnitKind kind) {
  std::vector<View> chunks;
  for (const UnitViews& v : units) {
    if (v.unit->kind == kind) std::ranges::copy(v.params[0], std::back_inserter(chunks));
  }
  return chunks;
}

}  // namespace

EmbedWeights embed_weights(std::span<const UnitViews> units) {
  const UnitViews* norm = find(units, UnitKind::embedding_norm);
  return {.tokens = chunks_of(units, UnitKind::vocabulary),
          .positions = whole(find(units, UnitKind::positions), "weight"),
          .norm_w = whole(norm, "weight"),
          .norm_b = whole(norm, "bias")};
}

EmbedWeights embed_gradients(std::span<const UnitViews> units) {
  EmbedWeights gradients = embed_weights(units);
  const UnitViews* positions = find(units, UnitKind::positions);
  if (positions != nullptr && !positions->unit->traits.trained) gradients.positions = {};
  return gradients;
}

HeadWeights head_weights(std::span<const UnitViews> units) {
  const UnitViews *norm = find(units, UnitKind::final_norm),
                  *dense = find(units, UnitKind::head_dense),
                  *value = find(units, UnitKind::value_head);
  const bool untied = find(units, UnitKind::head) != nullptr;
  return {.norm_w = whole(norm, "weight"),
          .norm_b = whole(norm, "bias"),
          .dense_w = whole(dense, "weight"),
          .dense_b = whole(dense, "bias"),
          .dense_norm_w = whole(dense, "norm.weight"),
          .dense_norm_b = whole(dense, "norm.bias"),
          .matrix = chunks_of(units, untied ? UnitKind::head : UnitKind::vocabulary),
          .bias = chunks_of(units, UnitKind::head_bias),
          .value_w = whole(value, "weight"),
          .value_b = whole(value, "bias")};
}

void embed_forward(UnitContext& u, const ModelConfig& c, const EmbedWeights& w, EmbedSaved& saved,
                   Carry& out) {
  const Dropout dropout = u.dropout(c, DropoutSite::embedding);
  out = {.resid = u.residual(Keep::input, c.hidden), .pending = {}};
  if (!c.embedding_norm) return embed(u, c, w, dropout, out.resid);
  saved.sum = u.residual(Keep::expensive, c.hidden);
  saved.stats = u.tensor(Keep::expensive, DType::f32, {saved.sum.rows(), 2});
  const View normal = dropout ? u.residual(Keep::transient, c.hidden) : out.resid;
  embed(u, c, w, {}, saved.sum);
  u.run(AddNorm{.resid = saved.sum,
                .pending = {},
                .weight = w.norm_w,
                .bias = w.norm_b,
                .sum = {},
                .out = normal,
                .stats = saved.stats,
                .kind = c.norm,
                .eps = c.norm_eps});
  if (dropout) u.run(ApplyDropout{.x = normal, .out = out.resid, .dropout = dropout});
}

void embed_backward(UnitContext& u, const ModelConfig& c, const EmbedWeights& w,
                    const EmbedSaved& saved, const View& d, const EmbedWeights& g,
                    Write token_write, Write write) {
  View local = d;
  if (c.embedding_norm) {
    if (const Dropout dropout = u.dropout(c, DropoutSite::embedding)) {
      local = u.residual(Keep::transient, c.hidden);
      u.run(ApplyDropout{.x = d, .out = local, .dropout = dropout});
    }
    PartialGradients partial(u, write);
    local = norm_backward(u, c, partial,
                          {.d_out = local,
                           .d_resid = {},
                           .sum = saved.sum,
                           .weight = w.norm_w,
                           .stats = saved.stats,
                           .d_weight = g.norm_w,
                           .d_bias = g.norm_b});
    partial.finish();
  }
  if (c.scaled_embeddings) {
    const View scaled = u.residual(Keep::transient, c.hidden);
    u.run(Scale{.x = local, .out = scaled, .factor = token_factor(c)});
    local = scaled;
  }
  // Only the positions that the sequence has are reached; the others' gradient is zero.
  const View reached =
      g.positions ? g.positions.row_range(0, std::min(u.whole_sequence(), g.positions.rows()))
                  : View{};
  const View all = gather_positions(u, local, Keep::transient);
  for (std::size_t i = 0; i < g.tokens.size(); ++i) {
    u.run(EmbedBackward{
        .tokens = u.micro_batch().tokens,
        .d = all,
        .d_token_table = g.tokens[i],
        .d_position_table = i == 0 ? reached : View{},
        .documents = u.micro_batch().positions,
        .token_write = token_write,
        .position_write = write,
        .first_token = first_token(u, c, i),
        .vocab = c.padded_vocab(),
        .dropout = c.embedding_norm ? Dropout{} : u.dropout_from(0, c, DropoutSite::embedding)});
  }
}

namespace {

/// The product that makes values, and its gradients: beside tokens' outputs, or of a model that has
/// no others, whose matrix is padded.
struct ValueProduct {
  View x;             // (..., C)
  View weight, bias;  // (N, C), of which the first row counts
  View d_weight, d_bias;

  /// A matrix of x's rows, with its other axes.
  View like_x(const View& v) const {
    return x.rank == 3 ? v.reshaped({x.extent(0), x.extent(1), v.cols()}) : v;
  }
};

/// Into (B T) f32.
void make_values(UnitContext& u, const ValueProduct& p, const View& values) {
  const std::int64_t rows = p.x.rows(), outputs = p.weight.rows();
  const View column = values.reshaped({rows, 1});
  const View made = outputs == 1 ? column : u.tensor(Keep::transient, DType::f32, {rows, outputs});
  u.run(Linear{.x = p.x, .weight = p.weight, .bias = p.bias, .y = p.like_x(made)});
  if (outputs > 1) u.run(Convert{.x = made.col_range(0, 1), .out = column});
}

/// What the output matrix reads, and what backward needs of how it came to be.
struct HeadInput {
  View sum, stats;          // of the final norm, at this rank's positions
  View h;                   // its output (B, T, C), at all positions
  View read;                // by the dense layer: h, or of pooled outputs (B K, C)
  View up, act, act_stats;  // of the dense layer, (rows, C')
  Dropout dropout;
  View x;  // (rows, C')
};

void final_norm(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in,
                HeadInput& n) {
  n.sum = in.pending ? u.residual(Keep::transient, c.hidden) : in.resid;
  if (!c.final_norm()) {
    n.h = gather_positions(u, n.sum, Keep::transient);
    return;
  }
  n.stats = u.tensor(Keep::transient, DType::f32, {in.resid.rows(), 2});
  n.h = u.residual(Keep::transient, c.hidden);
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
}

/// A view of rows that are equally many of each sample, as (B, rows of a sample, columns).
View by_sample(const UnitContext& u, const View& rows) {
  const std::int64_t samples = u.micro_batch().batch;
  return rows.reshaped({samples, rows.rows() / samples, rows.cols()});
}

/// act = norm(f(x W^T + b)), the norm where the head has one.
void dense_forward(UnitContext& u, const ModelConfig& c, const HeadWeights& w, HeadInput& n) {
  const std::int64_t rows = n.read.rows();
  n.up = u.temporary({rows, c.head.hidden});
  n.act = n.x = u.temporary({rows, c.head.hidden});
  u.run(Linear{.x = n.read, .weight = w.dense_w, .bias = w.dense_b, .y = n.up});
  u.run(Activate{.x = n.up, .y = n.act, .kind = c.head.activation});
  if (!c.head.norm) return;
  n.act_stats = u.tensor(Keep::transient, DType::f32, {rows, 2});
  n.x = u.temporary({rows, c.head.hidden});
  u.run(AddNorm{.resid = n.act,
                .pending = {},
                .weight = w.dense_norm_w,
                .bias = w.dense_norm_b,
                .sum = {},
                .out = n.x,
                .stats = n.act_stats,
                .kind = c.norm,
                .eps = c.norm_eps});
}

/// The gradient of what the dense layer read from that of what came of it.
View dense_backward(UnitContext& u, const ModelConfig& c, const HeadWeights& w, const HeadInput& n,
                    View d, const HeadWeights& g, Write write) {
  const std::int64_t rows = d.rows();
  if (c.head.norm) {
    const View d_act = u.temporary({rows, c.head.hidden});
    u.run(NormBackward{.d_out = by_sample(u, d),
                       .d_resid = {},
                       .sum = by_sample(u, n.act),
                       .weight = w.dense_norm_w,
                       .stats = n.act_stats,
                       .d_sum = by_sample(u, d_act),
                       .d_weight = g.dense_norm_w,
                       .d_bias = g.dense_norm_b,
                       .kind = c.norm,
                       .write = write});
    d = d_act;
  }
  const View d_up = u.temporary({rows, c.head.hidden}), d_read = u.temporary({rows, c.hidden});
  u.run(ActivateBackward{.x = n.up, .d_y = d, .d_x = d_up, .kind = c.head.activation});
  u.run(LinearBackwardInput{.d_y = d_up, .weight = w.dense_w, .d_x = d_read});
  u.run(LinearBackwardWeight{
      .d_y = d_up, .x = n.read, .d_weight = g.dense_w, .d_bias = g.dense_b, .write = write});
  return d_read;
}

/// All tensor ranks compute alike what is between the final norm and the output matrix.
HeadInput head_input(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in) {
  HeadInput n;
  final_norm(u, c, w, in, n);
  n.read = n.h.matrix();
  if (c.head.pooling != Pooling::none) {
    n.read = u.temporary({u.micro_batch().batch * c.head.documents, c.hidden});
    u.run(Pool{
        .x = n.h, .documents = u.micro_batch().documents, .out = n.read, .kind = c.head.pooling});
  }
  n.x = n.read;
  if (c.head.hidden > 0) dense_forward(u, c, w, n);
  if (c.head.labels > 0) n.dropout = u.dropout_from(0, c, DropoutSite::head);
  if (n.dropout) {
    const View x = u.temporary({n.x.rows(), n.x.cols()});
    u.run(ApplyDropout{.x = by_sample(u, n.x), .out = by_sample(u, x), .dropout = n.dropout});
    n.x = x;
  }
  return n;
}

/// This rank's positions of what is at all positions.
View own_positions(UnitContext& u, const View& all) {
  if (!u.tensor_region().split_sequence()) return all;
  const std::int64_t columns = all.cols(), samples = all.extent(0);
  const View own = u.residual(Keep::transient, columns);
  const View flat = all.reshaped({samples, all.extent(1) * columns});
  u.run(Convert{.x = flat.col_range(u.positions().begin * columns, own.extent(1) * columns),
                .out = own.reshaped({samples, own.extent(1) * columns})});
  return own;
}

/// The gradient of h at this rank's positions from that of the output matrix's input: of this
/// rank's positions where outputs are tokens, else of all rows.
View head_input_backward(UnitContext& u, const ModelConfig& c, const HeadWeights& w,
                         const HeadInput& n, View d, const HeadWeights& g, Write write) {
  if (c.head.labels == 0 && c.head.hidden == 0) return d;
  if (c.head.labels == 0) d = gather_positions(u, d, Keep::transient).matrix();
  if (n.dropout) {
    const View d_x = u.temporary({d.rows(), d.cols()});
    u.run(ApplyDropout{.x = by_sample(u, d), .out = by_sample(u, d_x), .dropout = n.dropout});
    d = d_x;
  }
  if (c.head.hidden > 0) d = dense_backward(u, c, w, n, d, g, write);
  if (c.head.pooling == Pooling::none) return own_positions(u, by_sample(u, d));
  const View d_h = u.activation(Keep::transient, c.hidden);
  u.run(PoolBackward{
      .d_out = d, .documents = u.micro_batch().documents, .d_x = d_h, .kind = c.head.pooling});
  return own_positions(u, d_h);
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

View bias_of(const HeadWeights& w, std::size_t chunk) {
  return w.bias.empty() ? View{} : w.bias[chunk];
}

/// Logits (rows, padded outputs of the chunk) of each of this rank's chunks.
std::vector<View> logits_of(UnitContext& u, const HeadWeights& w, const View& h) {
  std::vector<View> logits;
  for (std::size_t i = 0; i < w.matrix.size(); ++i) {
    logits.push_back(u.temporary({h.rows(), w.matrix[i].rows()}));
    u.run(Linear{.x = h, .weight = w.matrix[i], .bias = bias_of(w, i), .y = logits.back()});
  }
  return logits;
}

/// Losses of some rows, and the logarithms of their sums of exponentials, of chunks of logits.
void losses_of_chunks(UnitContext& u, const ModelConfig& c, const std::vector<View>& logits,
                      const HeadRows& of, const LossTerms& terms, const View& lse) {
  const TensorRegion& tensor = u.tensor_region();
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
  u.run(ClassifyLoss{.stats = stats,
                     .targets = of.targets,
                     .losses = of.losses,
                     .lse = lse,
                     .vocab = c.vocab,
                     .terms = terms});
}

/// Chunks of logits become their gradient; `scale`: one for all rows, or for each its own.
void gradients_of_chunks(UnitContext& u, const ModelConfig& c, const std::vector<View>& logits,
                         const HeadRows& of, const LossTerms& terms, const View& lse,
                         const View& scale) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
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

/// Losses of some rows; if a scale is given, they are those that are minimised, and logits become
/// their gradient.
void classify(UnitContext& u, const ModelConfig& c, const std::vector<View>& logits,
              const HeadRows& of, const View& scale) {
  const LossTerms terms = scale ? u.loss_terms : LossTerms{};
  if (const View& counts = u.micro_batch().confusion)
    u.run(Confusion{.logits = logits[0], .targets = of.targets, .counts = counts});
  if (u.tensor_region().whole() || c.head.labels > 0) {
    u.run(Classify{.logits = logits[0],
                   .targets = of.targets,
                   .losses = of.losses,
                   .scale = scale,
                   .vocab = c.outputs(),
                   .soft_cap = c.logit_soft_cap,
                   .terms = terms});
    return;
  }
  const View lse = u.tensor(Keep::transient, DType::f32, {of.losses.elements()});
  losses_of_chunks(u, c, logits, of, terms, lse);
  if (scale) gradients_of_chunks(u, c, logits, of, terms, lse, scale);
}

/// What the losses of all targets leave to the making of gradients, where these come of something
/// else: of pairs, or of how good targets were.
struct JudgedTargets {
  View losses, lse;          // of targets, (B T); of scores (B), without lse
  View slopes;               // alike, where gradients are made
  std::vector<View> logits;  // of all rows, where they are in memory at once
};

/// Losses of pairs, or of targets that were drawn: those of all targets first, for a pair's loss is
/// no sum of theirs; or scores.
JudgedTargets judge_targets(UnitContext& u, const ModelConfig& c, const HeadWeights& w,
                            const View& x, const View& losses) {
  const MicroBatch& batch = u.micro_batch();
  const auto of_targets = [&] { return u.tensor(Keep::transient, DType::f32, {x.rows()}); };
  const bool of_tokens = !u.scores();
  JudgedTargets made{
      .losses = of_targets(), .lse = of_tokens ? of_targets() : View{}, .slopes = {}, .logits = {}};
  for (const auto& [share, rows, first] : row_groups(u, x.rows(), u.logit_rows)) {
    const HeadRows of = rows_of(u, x, made.losses, rows);
    const std::vector<View> logits = logits_of(u, w, of.h);
    if (of_tokens) {
      losses_of_chunks(u, c, logits, of, {}, made.lse.range(rows.begin, rows.count()));
    } else {
      u.run(Score{.logits = logits[0], .targets = of.targets, .losses = of.losses});
    }
    if (rows.count() == x.rows()) made.logits = logits;
  }
  if (u.scale) made.slopes = of_targets();
  if (u.policy) {
    u.run(PolicyLoss{.target_losses = made.losses,
                     .targets = batch.targets,
                     .advantages = batch.advantages,
                     .weights = batch.weights,
                     .drawn = batch.drawn_losses,
                     .reference = batch.reference_losses,
                     .scale = u.scale,
                     .losses = losses,
                     .slopes = made.slopes,
                     .statistics = u.statistics,
                     .terms = *u.policy});
    return made;
  }
  PreferenceTerms terms = u.preference;
  if (!u.scale) terms.label_smoothing = 0;  // evaluation has none
  u.run(PreferenceLoss{.target_losses = made.losses.reshaped({batch.batch, x.rows() / batch.batch}),
                       .targets = batch.targets,
                       .reference = batch.reference,
                       .scale = u.scale,
                       .losses = losses,
                       .slopes = made.slopes,
                       .statistics = u.statistics,
                       .terms = terms});
  return made;
}

/// Losses of values, and the gradient of what made them. All tensor ranks compute it alike.
View value_backward(UnitContext& u, const ValueProduct& p, const View& losses, Write to_losses,
                    Write write) {
  const MicroBatch& batch = u.micro_batch();
  const View values = u.tensor(Keep::transient, DType::f32, {p.x.rows()}),
             slopes = u.tensor(Keep::transient, DType::f32, {p.x.rows()});
  make_values(u, p, values);
  u.run(ValueLoss{.values = values,
                  .targets = batch.targets,
                  .returns = batch.returns,
                  .weights = batch.weights,
                  .drawn = batch.drawn_values,
                  .scale = u.scale,
                  .losses = losses,
                  .slopes = slopes,
                  .write = to_losses,
                  .terms = *u.value});
  const View d_y = u.tensor(Keep::transient, u.compute(), {p.x.rows(), p.weight.rows()}),
             d_x = u.tensor(Keep::transient, u.compute(), {p.x.rows(), p.x.cols()});
  if (d_y.cols() > 1) u.run(Fill{.out = d_y});
  u.run(Convert{.x = slopes.reshaped({p.x.rows(), 1}), .out = d_y.col_range(0, 1)});
  u.run(LinearBackwardInput{.d_y = p.like_x(d_y), .weight = p.weight, .d_x = p.like_x(d_x)});
  u.run(LinearBackwardWeight{
      .d_y = p.like_x(d_y), .x = p.x, .d_weight = p.d_weight, .d_bias = p.d_bias, .write = write});
  return p.like_x(d_x);
}

/// What makes values of the last norm's output beside tokens.
ValueProduct value_head(const HeadWeights& w, const HeadInput& n, const HeadWeights& g) {
  return {
      .x = n.h, .weight = w.value_w, .bias = w.value_b, .d_weight = g.value_w, .d_bias = g.value_b};
}
/// Of a model whose only output is a value.
ValueProduct value_output(const HeadWeights& w, const HeadInput& n, const HeadWeights& g) {
  return {.x = n.x,
          .weight = w.matrix[0],
          .bias = bias_of(w, 0),
          .d_weight = g.matrix.empty() ? View() : g.matrix[0],
          .d_bias = g.matrix.empty() ? View() : bias_of(g, 0)};
}

}  // namespace

void head_values(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in,
                 const View& out) {
  const HeadInput n = head_input(u, c, w, in);
  make_values(u, c.head.values ? value_head(w, n, {}) : value_output(w, n, {}), out);
}

void head_scores(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in,
                 const View& out) {
  const View x = head_input(u, c, w, in).x;
  u.run(Score{.logits = logits_of(u, w, x)[0], .targets = u.micro_batch().targets, .losses = out});
}

View head_logits(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in) {
  const View x = head_input(u, c, w, in).x;
  const View logits = by_sample(u, logits_of(u, w, x)[0]);
  if (c.logit_soft_cap == 0) return logits;
  const View capped = u.temporary({logits.extent(0), logits.extent(1), logits.cols()});
  u.run(SoftCap{.x = logits, .out = capped, .cap = c.logit_soft_cap});
  return capped;
}

void head_next_logits(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in,
                      const View& out) {
  View x = head_input(u, c, w, in).h;
  if (const MicroBatch& batch = u.micro_batch(); batch.counted) {
    const View last = u.temporary({batch.batch, c.hidden});
    u.run(Pool{.x = x, .documents = batch.counted, .out = last, .kind = Pooling::last});
    x = last;
  }
  const std::vector<View> logits = logits_of(u, w, x.matrix());
  const TensorCut& cut = u.tensor_region().cut;
  const std::int64_t rows = out.extent(1);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    View y = logits[i];
    if (c.logit_soft_cap > 0) {
      const View capped = u.temporary({y.rows(), y.cols()});
      u.run(SoftCap{.x = y, .out = capped, .cap = c.logit_soft_cap});
      y = capped;
    }
    const std::int64_t chunk = cut.first() + static_cast<std::int64_t>(i);
    u.run(Convert{.x = y, .out = out.row_range(chunk * rows, rows).col_range(0, y.cols())});
  }
  if (cut.ranks > 1) {
    u.tensor_region().run(
        comm::AllGather{.shard = out.row_range(cut.first() * rows, cut.own() * rows), .full = out});
  }
}

void head_loss(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in,
               const View& losses) {
  const View x = head_input(u, c, w, in).x;
  if (u.preference) {
    judge_targets(u, c, w, x, losses);
    return;
  }
  for (const auto& [share, rows, first] : row_groups(u, x.rows(), u.logit_rows)) {
    const HeadRows of = rows_of(u, x, losses, rows);
    classify(u, c, logits_of(u, w, of.h), of, {});
  }
}

namespace {

/// Logits of some rows that have become their gradient; their losses too, but where they are there
/// before.
std::vector<View> logits_gradient(UnitContext& u, const ModelConfig& c, const HeadWeights& w,
                                  const View& x, const View& losses,
                                  const std::optional<JudgedTargets>& judged, Range rows) {
  const HeadRows of = rows_of(u, x, judged ? judged->losses : losses, rows);
  if (!judged) {
    const std::vector<View> logits = logits_of(u, w, of.h);
    classify(u, c, logits, of, u.scale);
    return logits;
  }
  const std::vector<View> logits = judged->logits.empty() ? logits_of(u, w, of.h) : judged->logits;
  const View slopes = judged->slopes.range(rows.begin, rows.count());
  if (u.scores()) {
    u.run(ScoreGradient{.slopes = slopes, .logits = logits[0]});
  } else {
    gradients_of_chunks(u, c, logits, of, {}, judged->lse.range(rows.begin, rows.count()), slopes);
  }
  return logits;
}

/// The gradient of what the output matrices read, of all that have a chunk of them.
class OutputsGradient {
 public:
  OutputsGradient(UnitContext& u, const ModelConfig& c, std::int64_t rows) {
    if (c.head.labels > 0) {
      alone_ = u.temporary({rows, c.head_columns()});
    } else {
      sum_.emplace(u, c.head_columns());
    }
  }
  /// Where this rank's i-th chunk puts its part.
  View part(std::size_t i) const { return sum_ ? sum_->part(i) : alone_; }
  void start() {
    if (sum_) sum_->start();
  }
  View finish() { return sum_ ? sum_->finish() : alone_; }

 private:
  std::optional<ChunkSum> sum_;  // outputs are tokens
  View alone_;                   // or classes, which are not cut
};

}  // namespace

/// The gradient of what the head reads, at this rank's positions, from that of its norm's output.
static View norm_of_head_backward(UnitContext& u, const ModelConfig& c, const HeadWeights& w,
                                  const HeadInput& n, const View& d_h, const HeadWeights& g,
                                  Write write) {
  if (!c.final_norm()) return d_h;
  PartialGradients partial(u, write);
  const View d_sum = norm_backward(u, c, partial,
                                   {.d_out = d_h,
                                    .d_resid = {},
                                    .sum = n.sum,
                                    .weight = w.norm_w,
                                    .stats = n.stats,
                                    .d_weight = g.norm_w,
                                    .d_bias = g.norm_b});
  partial.finish();
  return d_sum;
}

View head_loss_backward(UnitContext& u, const ModelConfig& c, const HeadWeights& w, Carry in,
                        const View& losses, const HeadWeights& g, Write write) {
  const HeadInput n = head_input(u, c, w, in);
  if (u.value && !c.head.values) {
    const View d_x = value_backward(u, value_output(w, n, g), losses, Write::overwrite, write);
    return norm_of_head_backward(u, c, w, n, head_input_backward(u, c, w, n, d_x, g, write), g,
                                 write);
  }
  std::optional<JudgedTargets> judged;
  if (u.preference || u.policy) judged = judge_targets(u, c, w, n.x, losses);
  OutputsGradient d_x(u, c, n.x.rows());
  std::vector<ShareSum> d_matrix, d_bias;
  for (std::size_t i = 0; i < g.matrix.size(); ++i)
    d_matrix.emplace_back(u, g.matrix[i]), d_bias.emplace_back(u, bias_of(g, i));
  for (const RowGroup& group : row_groups(u, n.x.rows(), u.logit_rows)) {
    const std::vector<View> logits = logits_gradient(u, c, w, n.x, losses, judged, group.rows);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      u.run(LinearBackwardInput{
          .d_y = logits[i], .weight = w.matrix[i], .d_x = group.of(d_x.part(i))});
    }
    if (group.rows.end == n.x.rows()) d_x.start();
    for (std::size_t i = 0; i < logits.size(); ++i) {
      u.run(LinearBackwardWeight{.d_y = logits[i],
                                 .x = group.of(n.x),
                                 .d_weight = d_matrix[i].part(group.share),
                                 .d_bias = d_bias[i].part(group.share),
                                 .write = group.first ? d_matrix[i].write_to(write) : Write::add});
    }
  }
  for (ShareSum& sum : d_matrix) sum.finish(write);
  for (ShareSum& sum : d_bias) sum.finish(write);
  const View d_h = head_input_backward(u, c, w, n, d_x.finish(), g, write);
  if (u.value) {
    const View d_read = value_backward(u, value_head(w, n, g), losses, Write::add, write);
    u.run(Convert{.x = own_positions(u, d_read), .out = d_h, .write = Write::add});
  }
  return norm_of_head_backward(u, c, w, n, d_h, g, write);
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
