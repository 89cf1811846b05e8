#include "model/block.hpp"

#include <cmath>

namespace tessera::model {

using namespace kernels;

namespace {

/// The view of `count` joined parameters starting at the one called `first`.
View joined_view(const UnitDesc& unit, std::span<const View> params, std::string_view first,
                 std::size_t count) {
  if (!unit.has(first)) return {};
  const std::size_t begin = unit.index_of(first);
  View all = params[begin];
  for (std::size_t i = begin + 1; i < begin + count; ++i) all.shape[0] += params[i].shape[0];
  if (all.rank == 1) all.ld = all.shape[0];
  return all;
}

AttentionShape attention_shape(const ModelConfig& c) {
  return {.heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim))};
}

struct Qkv {
  View q, k, v, rotated;  // column ranges; `rotated` is q and k together
};
Qkv split(const ModelConfig& c, const View& qkv) {
  const std::int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  return {qkv.col_range(0, q), qkv.col_range(q, kv), qkv.col_range(q + kv, kv),
          qkv.col_range(0, q + kv)};
}

void rotate(UnitContext& u, const ModelConfig& c, const View& x, std::int64_t first,
            Rope::Direction direction) {
  if (c.position != PositionKind::rope) return;
  u.run(Rope{.x = x,
             .head_dim = c.head_dim,
             .first_position = first,
             .theta = c.rope_theta,
             .direction = direction});
}

/// The gradient of a sub-layer's output from that of the sum it was added to.
View undo_dropout(UnitContext& u, const ModelConfig& c, const View& d, const Dropout& dropout) {
  if (!dropout) return d;
  const View out = u.activation(Keep::transient, c.hidden);
  u.run(ApplyDropout{.x = d, .out = out, .dropout = dropout});
  return out;
}

}  // namespace

BlockWeights block_weights(const UnitDesc& unit, std::span<const View> params) {
  const auto pick = [&](std::string_view name, std::size_t count = 1) {
    return joined_view(unit, params, name, count);
  };
  const bool gated = unit.has("mlp.gate.weight");
  const std::string up = gated ? "mlp.gate" : "mlp.up";
  const std::size_t ups = gated ? 2 : 1;
  return {.norm1_w = pick("norm1.weight"),
          .norm1_b = pick("norm1.bias"),
          .qkv_w = pick("attention.q.weight", 3),
          .qkv_b = pick("attention.q.bias", 3),
          .out_w = pick("attention.out.weight"),
          .out_b = pick("attention.out.bias"),
          .norm2_w = pick("norm2.weight"),
          .norm2_b = pick("norm2.bias"),
          .up_w = pick(up + ".weight", ups),
          .up_b = pick(up + ".bias", ups),
          .down_w = pick("mlp.down.weight"),
          .down_b = pick("mlp.down.bias")};
}

namespace {

/// resid + dropout(pending), normalised. Returns the sum, which is resid itself when nothing is
/// pending.
View add_norm(UnitContext& u, const ModelConfig& c, Carry in, Keep keep_sum, const View& weight,
              const View& bias, DropoutSite site, View& h, View& stats) {
  const View sum = in.pending ? u.activation(keep_sum, c.hidden) : in.resid;
  h = u.activation(Keep::cheap, c.hidden);
  stats = u.tensor(Keep::expensive, DType::f32, {in.resid.rows(), 2});
  u.run(AddNorm{.resid = in.resid,
                .pending = in.pending,
                .weight = weight,
                .bias = bias,
                .sum = in.pending ? sum : View{},
                .out = h,
                .stats = stats,
                .kind = c.norm,
                .eps = c.norm_eps,
                .dropout = in.pending ? u.dropout(c, site) : Dropout{}});
  return sum;
}

/// The second half: norm, feed-forward; the output stays pending.
void mlp_forward(UnitContext& u, const ModelConfig& c, const BlockWeights& w, Carry in,
                 BlockSaved& s, Carry& out) {
  s.sum2 = add_norm(u, c, in, Keep::expensive, w.norm2_w, w.norm2_b, DropoutSite::attention_out,
                    s.h2, s.norm2);
  s.up = u.activation(Keep::expensive, c.up_columns());
  u.run(Linear{.x = s.h2, .weight = w.up_w, .bias = w.up_b, .y = s.up});
  s.act = u.activation(Keep::cheap, c.ffn_hidden);
  u.run(Activate{.x = s.up, .y = s.act, .kind = c.activation});
  const View mlp = u.activation(Keep::transient, c.hidden);
  u.run(Linear{.x = s.act, .weight = w.down_w, .bias = w.down_b, .y = mlp});
  out = {.resid = s.sum2, .pending = mlp};
}

}  // namespace

void block_forward(UnitContext& u, const ModelConfig& c, const BlockWeights& w, Carry in,
                   BlockSaved& s, Carry& out) {
  s.sum1 =
      add_norm(u, c, in, Keep::input, w.norm1_w, w.norm1_b, DropoutSite::incoming, s.h1, s.norm1);
  s.qkv = u.activation(Keep::expensive, c.qkv_columns());
  u.run(Linear{.x = s.h1, .weight = w.qkv_w, .bias = w.qkv_b, .y = s.qkv});
  rotate(u, c, split(c, s.qkv).rotated, 0, Rope::Direction::forward);
  const auto& [batch, sequence, tokens, targets, samples] = u.micro_batch();
  const Qkv x = split(c, s.qkv);
  s.att = u.activation(Keep::expensive, c.heads * c.head_dim);
  s.lse = u.tensor(Keep::expensive, DType::f32, {batch, c.heads, sequence});
  u.run(Attention{.q = x.q,
                  .k = x.k,
                  .v = x.v,
                  .out = s.att,
                  .lse = s.lse,
                  .shape = attention_shape(c),
                  .dropout = u.dropout(c, DropoutSite::inner)});
  const View projected = u.activation(Keep::transient, c.hidden);
  u.run(Linear{.x = s.att, .weight = w.out_w, .bias = w.out_b, .y = projected});
  mlp_forward(u, c, w, {.resid = s.sum1, .pending = projected}, s, out);
}

View block_backward(UnitContext& u, const ModelConfig& c, const BlockWeights& w,
                    const BlockSaved& s, View d, const BlockWeights& g, Write write) {
  // Feed-forward; what it left pending was dropped out where it was added, in the next visit.
  const View d_mlp = undo_dropout(u, c, d, u.dropout(c, DropoutSite::incoming, 1));
  const View d_act = u.activation(Keep::transient, c.ffn_hidden);
  u.run(LinearBackwardInput{.d_y = d_mlp, .weight = w.down_w, .d_x = d_act});
  u.run(LinearBackwardWeight{
      .d_y = d_mlp, .x = s.act, .d_weight = g.down_w, .d_bias = g.down_b, .write = write});
  const View d_up = u.activation(Keep::transient, c.up_columns());
  u.run(ActivateBackward{.x = s.up, .d_y = d_act, .d_x = d_up, .kind = c.activation});
  const View d_h2 = u.activation(Keep::transient, c.hidden);
  u.run(LinearBackwardInput{.d_y = d_up, .weight = w.up_w, .d_x = d_h2});
  u.run(LinearBackwardWeight{
      .d_y = d_up, .x = s.h2, .d_weight = g.up_w, .d_bias = g.up_b, .write = write});
  const View d_sum2 = u.activation(Keep::transient, c.hidden);
  u.run(NormBackward{.d_out = d_h2,
                     .d_resid = d,
                     .sum = s.sum2,
                     .weight = w.norm2_w,
                     .stats = s.norm2,
                     .d_sum = d_sum2,
                     .d_weight = g.norm2_w,
                     .d_bias = g.norm2_b,
                     .kind = c.norm,
                     .write = write});
  // Attention.
  const View d_projected = undo_dropout(u, c, d_sum2, u.dropout(c, DropoutSite::attention_out));
  const View d_att = u.activation(Keep::transient, c.heads * c.head_dim);
  u.run(LinearBackwardInput{.d_y = d_projected, .weight = w.out_w, .d_x = d_att});
  u.run(LinearBackwardWeight{
      .d_y = d_projected, .x = s.att, .d_weight = g.out_w, .d_bias = g.out_b, .write = write});
  const View d_qkv = u.activation(Keep::transient, c.qkv_columns());
  const Qkv x = split(c, s.qkv), dx = split(c, d_qkv);
  u.run(AttentionBackward{.q = x.q,
                          .k = x.k,
                          .v = x.v,
                          .out = s.att,
                          .lse = s.lse,
                          .d_out = d_att,
                          .d_q = dx.q,
                          .d_k = dx.k,
                          .d_v = dx.v,
                          .shape = attention_shape(c),
                          .dropout = u.dropout(c, DropoutSite::inner)});
  rotate(u, c, dx.rotated, 0, Rope::Direction::inverse);
  const View d_h1 = u.activation(Keep::transient, c.hidden);
  u.run(LinearBackwardInput{.d_y = d_qkv, .weight = w.qkv_w, .d_x = d_h1});
  u.run(LinearBackwardWeight{
      .d_y = d_qkv, .x = s.h1, .d_weight = g.qkv_w, .d_bias = g.qkv_b, .write = write});
  const View d_sum1 = u.activation(Keep::transient, c.hidden);
  u.run(NormBackward{.d_out = d_h1,
                     .d_resid = d_sum2,
                     .sum = s.sum1,
                     .weight = w.norm1_w,
                     .stats = s.norm1,
                     .d_sum = d_sum1,
                     .d_weight = g.norm1_w,
                     .d_bias = g.norm1_b,
                     .kind = c.norm,
                     .write = write});
  return d_sum1;
}

void block_generate(UnitContext& u, const ModelConfig& c, const BlockWeights& w, Carry in,
                    KvCache& cache, Carry& out) {
  const std::int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const std::int64_t first = cache.length, count = u.micro_batch().sequence;
  BlockSaved s;
  s.sum1 =
      add_norm(u, c, in, Keep::input, w.norm1_w, w.norm1_b, DropoutSite::incoming, s.h1, s.norm1);
  const auto project = [&](std::int64_t row, std::int64_t rows, const View& y) {
    u.run(Linear{.x = s.h1,
                 .weight = w.qkv_w.row_range(row, rows),
                 .bias = w.qkv_b ? w.qkv_b.range(row, rows) : View{},
                 .y = y});
  };
  const auto cached = [&](const View& all, std::int64_t begin, std::int64_t rows) {
    return all.row_range(begin, rows).reshaped({1, rows, kv});
  };
  const View query = u.activation(Keep::transient, q);
  project(0, q, query);
  project(q, kv, cached(cache.k, first, count));
  project(q + kv, kv, cached(cache.v, first, count));
  rotate(u, c, query, first, Rope::Direction::forward);
  rotate(u, c, cached(cache.k, first, count), first, Rope::Direction::forward);
  s.att = u.activation(Keep::transient, q);
  u.run(Attention{.q = query,
                  .k = cached(cache.k, 0, first + count),
                  .v = cached(cache.v, 0, first + count),
                  .out = s.att,
                  .shape = attention_shape(c)});
  const View projected = u.activation(Keep::transient, c.hidden);
  u.run(Linear{.x = s.att, .weight = w.out_w, .bias = w.out_b, .y = projected});
  mlp_forward(u, c, w, {.resid = s.sum1, .pending = projected}, s, out);
}

}  // namespace tessera::model
