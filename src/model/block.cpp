#include "model/block.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "model/cached.hpp"
#include "model/context_parallel.hpp"
#include "model/feed_forward.hpp"
#include "model/latents.hpp"
#include "model/tensor_parallel.hpp"

namespace tessera::model {

using namespace kernels;

HeadPart heads_of(const ModelConfig& c, std::int64_t chunk, std::int64_t chunks) {
  HeadPart part{.heads = {}, .kv_heads = {}, .group = c.heads / c.kv_heads};
  if (c.kv_heads < chunks) {
    part.heads = even_part(c.heads, chunk, chunks);
    part.kv_heads = {part.heads.begin / part.group, ceil_div(part.heads.end, part.group)};
  } else {
    part.kv_heads = even_part(c.kv_heads, chunk, chunks);
    part.heads = {part.kv_heads.begin * part.group, part.kv_heads.end * part.group};
  }
  return part;
}

namespace {

/// The parameters of a block by name, without its own, wherever its units have them.
class BlockParameters {
 public:
  explicit BlockParameters(std::span<const UnitViews> units) : units_(units) {}

  bool has(std::string_view name) const { return !unit_of(name).empty(); }
  /// Whether every tensor rank has the whole of it.
  bool whole(std::string_view name) const {
    const UnitViews& unit = unit_of(name).front();
    return unit.unit->params[unit.unit->index_of(name)].tensor_axis < 0;
  }
  /// By chunk, the view of `count` joined parameters of which the first is called so; empty if
  /// there is none.
  std::vector<View> chunks(std::string_view first, std::size_t count = 1) const {
    std::vector<View> all;
    for (const UnitViews& tile : unit_of(first)) {
      if (!tile.unit->has(first)) break;
      const auto* params = &tile.params[tile.unit->index_of(first)];
      for (std::size_t chunk = 0; chunk < params->size(); ++chunk) {
        View joined = params[0][chunk];
        for (std::size_t i = 1; i < count; ++i) joined.shape[0] += params[i][chunk].shape[0];
        if (joined.rank == 1) joined.ld = joined.shape[0];
        all.push_back(joined);
      }
    }
    return all;
  }
  /// Whether it is an expert's, and chunks have whole ones (ParamDesc::undivided).
  bool undivided(std::string_view name) const {
    const UnitViews& unit = unit_of(name).front();
    return unit.unit->params[unit.unit->index_of(name)].undivided;
  }
  /// How many experts the layer has.
  std::size_t experts() const {
    const std::string_view first = "mlp.expert.0.down.weight";
    if (!has(first)) return 0;
    const UnitDesc& unit = *unit_of(first).front().unit;
    return static_cast<std::size_t>(unit.params[unit.index_of(first)].experts);
  }
  /// One that is whole, or absent.
  View one(std::string_view name) const { return has(name) ? chunks(name).front() : View{}; }

 private:
  /// The first unit that has the parameter and those behind it: its tiles come first.
  std::span<const UnitViews> unit_of(std::string_view name) const {
    std::size_t i = 0;
    while (i < units_.size() && !units_[i].unit->has(name)) ++i;
    return units_.subspan(i);
  }

  std::span<const UnitViews> units_;
};

}  // namespace

BlockWeights block_weights(std::span<const UnitViews> units) {
  const BlockParameters params(units);
  const std::string own = params.has("mlp.shared.up.weight") ? "mlp.shared." : "mlp.";
  const auto first_of = [&](const std::string& prefix) {
    return prefix + (params.has(prefix + "gate.weight") ? "gate" : "up");
  };
  const std::string up = first_of(own), expert = "mlp.expert.0.";
  const std::size_t ups = up.ends_with("gate") ? 2 : 1, experts = params.experts();
  const bool whole_kv = params.whole("attention.k.weight");
  BlockWeights w{.norm1_w = params.one("norm1.weight"),
                 .norm1_b = params.one("norm1.bias"),
                 .norm2_w = params.one("norm2.weight"),
                 .norm2_b = params.one("norm2.bias"),
                 .norm1_out_w = params.one("norm1_out.weight"),
                 .norm1_out_b = params.one("norm1_out.bias"),
                 .norm2_out_w = params.one("norm2_out.weight"),
                 .norm2_out_b = params.one("norm2_out.bias"),
                 .q_norm_w = params.one("attention.q_norm.weight"),
                 .k_norm_w = params.one("attention.k_norm.weight"),
                 .q_latent_norm_w = params.one("attention.q_latent_norm.weight"),
                 .kv_latent_norm_w = params.one("attention.kv_latent_norm.weight"),
                 .out_b = params.one("attention.out.bias"),
                 .down_b = params.one("mlp.down.bias"),
                 .router_w = params.one("mlp.router.weight"),
                 .router_b = params.one("mlp.router.bias"),
                 .router_shares = params.one(kRouterShares.substr(1)),
                 .k_w = whole_kv ? params.one("attention.k.weight") : View{},
                 .k_b = whole_kv ? params.one("attention.k.bias") : View{},
                 .v_w = whole_kv ? params.one("attention.v.weight") : View{},
                 .v_b = whole_kv ? params.one("attention.v.bias") : View{},
                 .chunks = {}};
  const bool latent = params.has("attention.kv_latent.weight"),
             latent_q = params.has("attention.q_latent.weight");
  const std::size_t joined = whole_kv || latent ? 1 : 3;
  const auto fill = [&](auto&& member, const std::vector<View>& views) {
    w.chunks.resize(std::max(w.chunks.size(), views.size()));
    for (std::size_t i = 0; i < views.size(); ++i) std::invoke(member, w.chunks[i]) = views[i];
  };
  fill(&BlockChunk::qkv_w, params.chunks("attention.q.weight", joined));
  fill(&BlockChunk::qkv_b, params.chunks("attention.q.bias", joined));
  if (latent) {
    const char* first = latent_q ? "attention.q_latent.weight" : "attention.kv_latent.weight";
    fill(&BlockChunk::latent_w, params.chunks(first, latent_q ? 3 : 2));
    fill(&BlockChunk::kv_w, params.chunks("attention.k.weight", 2));
  }
  fill(&BlockChunk::out_w, params.chunks("attention.out.weight"));
  fill(&BlockChunk::up_w, params.chunks(up + ".weight", ups));
  fill(&BlockChunk::up_b, params.chunks(up + ".bias", ups));
  fill(&BlockChunk::down_w, params.chunks(own + "down.weight"));
  if (experts == 0) return w;
  w.whole_experts = params.undivided(expert + "down.weight");
  const std::size_t expert_ups = experts * (first_of(expert).ends_with("gate") ? 2 : 1);
  fill([](BlockChunk& chunk) -> View& { return chunk.experts.up_w; },
       params.chunks(first_of(expert) + ".weight", expert_ups));
  fill([](BlockChunk& chunk) -> View& { return chunk.experts.down_w; },
       params.chunks(expert + "down.weight", experts));
  return w;
}

namespace {

/// One chunk's attention: its heads, and q, k and v as columns of its qkv matrix.
struct AttentionPart {
  AttentionPart(const ModelConfig& config, const UnitContext& u, std::size_t own_chunk)
      : c(config),
        heads(heads_of(config, u.tensor_region().cut.first() + static_cast<std::int64_t>(own_chunk),
                       u.tensor_region().cut.chunks)),
        q_columns(heads.heads.count() * c.head_dim),
        k_columns(heads.kv_heads.count() * c.head_dim),
        v_columns(heads.kv_heads.count() * c.values()),
        out_columns(heads.heads.count() * c.values()) {}

  std::int64_t columns() const { return q_columns + k_columns + v_columns; }
  View q(const View& qkv) const { return qkv.col_range(0, q_columns); }
  View k(const View& qkv) const { return qkv.col_range(q_columns, k_columns); }
  View v(const View& qkv) const { return qkv.col_range(q_columns + k_columns, v_columns); }
  View qk(const View& qkv) const { return qkv.col_range(0, q_columns + k_columns); }

  AttentionShape shape(const UnitContext& u) const {
    return {.heads = heads.heads.count(),
            .kv_heads = heads.kv_heads.count(),
            .head_dim = c.head_dim,
            .value_dim = c.values(),
            .scale = c.score_scale / std::sqrt(static_cast<float>(
                                         c.query_scalar > 0 ? c.query_scalar : c.head_dim)),
            .mask = c.attention,
            .window = u.reach == Reach::window ? c.window : 0,
            .soft_cap = c.attention_soft_cap,
            .group = heads.group,
            .skip = heads.skip()};
  }
  /// Dropout of attention's probabilities, which are (H, T, T) for each sample.
  Dropout dropout(const UnitContext& u) const {
    const std::int64_t t = u.whole_sequence();
    return u.dropout_from(heads.heads.begin * t * t, c, DropoutSite::attention);
  }
  /// f(weight, bias, columns of qkv) for each product that makes the chunk's qkv: one, or three
  /// where keys and values are whole.
  template <typename F>
  void each_product(const BlockWeights& w, const BlockChunk& chunk, const View& qkv, F&& f) const {
    if (!w.k_w) return f(chunk.qkv_w, chunk.qkv_b, qkv);
    const auto rows = [&](const View& x, std::int64_t dim) {
      const std::int64_t first = heads.kv_heads.begin * dim, count = heads.kv_heads.count() * dim;
      return !x ? x : x.rank == 1 ? x.range(first, count) : x.row_range(first, count);
    };
    f(chunk.qkv_w, chunk.qkv_b, q(qkv));
    f(rows(w.k_w, c.head_dim), rows(w.k_b, c.head_dim), k(qkv));
    f(rows(w.v_w, c.values()), rows(w.v_b, c.values()), v(qkv));
  }

  const ModelConfig& c;
  HeadPart heads;
  std::int64_t q_columns, k_columns, v_columns, out_columns;
};

}  // namespace

Rope rope_of(const UnitContext& u, const ModelConfig& c, Rope::Direction direction) {
  const bool local = u.reach == Reach::window && c.rope_local_theta > 0;
  return {.x = {},
          .documents = {},
          .head_dim = c.head_dim,
          .rotary_dim = c.latent ? c.latent.rope : c.rotary_dim,
          .first_column = c.latent ? c.head_dim - c.latent.rope : 0,
          .theta = local ? c.rope_local_theta : c.rope_theta,
          .pairs = c.rope_pairs,
          .scaling = local ? RopeScaling{} : c.rope_scaling,
          .direction = direction};
}

void norm_heads(UnitContext& u, const ModelConfig& c, const View& x, const View& weight,
                const View& out, View& stats) {
  const std::int64_t heads = x.cols() / weight.elements();
  stats = u.tensor(Keep::expensive, DType::f32, {x.rows() * heads, 2});
  u.run(AddNorm{.resid = x,
                .pending = {},
                .weight = weight,
                .bias = {},
                .sum = {},
                .out = out,
                .stats = stats,
                .kind = c.norm,
                .eps = c.norm_eps,
                .heads = heads});
}

namespace {

void rotate(UnitContext& u, const ModelConfig& c, const View& x, Rope::Direction direction) {
  if (c.position == PositionKind::rope) rotate(u, rope_of(u, c, direction), x);
}

/// d_x = the gradient of qkv's input from that of qkv.
void project_back(UnitContext& u, const AttentionPart& part, const BlockWeights& w,
                  const BlockChunk& chunk, const View& d_qkv, const View& d_x) {
  if (!w.k_w)
    return u.multiply(LinearBackwardInput{.d_y = d_qkv, .weight = chunk.qkv_w, .d_x = d_x});
  Summands products(u, d_x, 3);
  part.each_product(w, chunk, d_qkv, [&](const View& weight, const View&, const View& d_y) {
    u.multiply(LinearBackwardInput{.d_y = d_y, .weight = weight, .d_x = products.next()});
  });
  products.finish();
}

/// resid + dropout(pending), which is resid itself when nothing is pending.
View add_pending(UnitContext& u, const ModelConfig& c, Carry in, Keep keep, DropoutSite site) {
  if (!in.pending) return in.resid;
  const View sum = u.residual(keep, c.hidden);
  u.run(AddPending{
      .resid = in.resid, .pending = in.pending, .sum = sum, .dropout = u.dropout(c, site)});
  return sum;
}

/// What a sub-layer reads, at all positions: resid + dropout(pending), normalised where the model
/// normalises inputs. Returns the sum, which is resid itself when nothing is pending.
View add_norm(UnitContext& u, const ModelConfig& c, Carry in, Keep keep_sum, const View& weight,
              const View& bias, DropoutSite site, View& h, View& stats) {
  if (!c.norms_inputs()) {
    const View sum = add_pending(u, c, in, keep_sum, site);
    h = gather_positions(u, sum, Keep::cheap);
    return sum;
  }
  const View sum = in.pending ? u.residual(keep_sum, c.hidden) : in.resid;
  const View local = u.residual(Keep::cheap, c.hidden);
  stats = u.tensor(Keep::expensive, DType::f32, {in.resid.rows(), 2});
  u.run(AddNorm{.resid = in.resid,
                .pending = in.pending,
                .weight = weight,
                .bias = bias,
                .sum = in.pending ? sum : View{},
                .out = local,
                .stats = stats,
                .kind = c.norm,
                .eps = c.norm_eps,
                .dropout = in.pending ? u.dropout(c, site) : Dropout{}});
  h = gather_positions(u, local, Keep::cheap);
  return sum;
}

/// A sub-layer's sum over chunks, kept where backward needs it to go through the norm of it.
ChunkSum output_sum(UnitContext& u, const ModelConfig& c, const View& bias) {
  return {u, c.hidden, bias, DType::u8, c.norms_outputs() ? Keep::expensive : Keep::transient};
}

/// A norm behind a sub-layer, and what backward needs of it.
struct NormBehind {
  View weight, bias;
  View &saved, &stats;
};

/// What a sub-layer's output makes of the carry: it stays pending, or its norm does, or it is added
/// and the sum normalised.
Carry with_output(UnitContext& u, const ModelConfig& c, const View& resid, const View& output,
                  const NormBehind& norm, const Dropout& dropout) {
  if (!c.norms_outputs() && !c.norms_sums()) return {.resid = resid, .pending = output};
  const bool sums = c.norms_sums();
  norm.saved = sums ? u.residual(Keep::expensive, c.hidden) : output;
  norm.stats = u.tensor(Keep::expensive, DType::f32, {output.rows(), 2});
  const View out = u.residual(sums ? Keep::cheap : Keep::transient, c.hidden);
  u.run(AddNorm{.resid = sums ? resid : output,
                .pending = sums ? output : View{},
                .weight = norm.weight,
                .bias = norm.bias,
                .sum = sums ? norm.saved : View{},
                .out = out,
                .stats = norm.stats,
                .kind = c.norm,
                .eps = c.norm_eps,
                .dropout = sums ? dropout : Dropout{}});
  return sums ? Carry{.resid = out, .pending = {}} : Carry{.resid = resid, .pending = out};
}

/// The second half: norm, unless attention's serves both, and feed-forward.
void mlp_forward(UnitContext& u, const ModelConfig& c, const BlockWeights& w, Carry in,
                 BlockSaved& s, Carry& out) {
  if (c.block == BlockForm::parallel_one_norm) {
    s.sum2 = s.sum1, s.h2 = s.h1;
  } else {
    s.sum2 = add_norm(u, c, in, Keep::expensive, w.norm2_w, w.norm2_b, DropoutSite::attention_out,
                      s.h2, s.norm2);
  }
  ChunkSum mlp = output_sum(u, c, w.down_b);
  feed_forward(u, c, w, s, mlp);
  mlp.start();
  out = with_output(u, c, s.sum2, mlp.finish(), {w.norm2_out_w, w.norm2_out_b, s.out2, s.norm2_out},
                    u.dropout(c, DropoutSite::incoming, 1));
}

/// What follows attention, whose sum over chunks is given: the feed-forward layer, which reads the
/// sum with it or, where both are parallel, what attention has read too.
void after_attention(UnitContext& u, const ModelConfig& c, const BlockWeights& w, const View& sum,
                     BlockSaved& s, Carry& out) {
  const Carry added =
      with_output(u, c, s.sum1, sum, {w.norm1_out_w, w.norm1_out_b, s.out1, s.norm1_out},
                  u.dropout(c, DropoutSite::attention_out));
  if (c.block == BlockForm::sequential) return mlp_forward(u, c, w, added, s, out);
  mlp_forward(u, c, w, {.resid = s.sum1, .pending = {}}, s, out);
  out.resid = add_pending(u, c, added, Keep::transient, DropoutSite::attention_out);
}

/// Turns q and k, normalised first where the model does so, into what attention sees; returns
/// where they are: in qkv or in a tensor of their own.
View position_qk(UnitContext& u, const ModelConfig& c, const BlockWeights& w,
                 const AttentionPart& part, BlockSaved::Chunk& s) {
  View qk = part.qk(s.qkv);
  if (w.q_norm_w) {
    qk = s.qk = u.activation(Keep::cheap, part.q_columns + part.k_columns);
    norm_heads(u, c, part.q(s.qkv), w.q_norm_w, part.q(qk), s.q_norm);
    norm_heads(u, c, part.k(s.qkv), w.k_norm_w, part.k(qk), s.k_norm);
  }
  rotate(u, c, qk, Rope::Direction::forward);
  return qk;
}

/// What chunk i's attention sees, made of the layer's input.
HeadInputs heads_of_input(UnitContext& u, const ModelConfig& c, const BlockWeights& w,
                          const AttentionPart& part, const BlockSaved& s, std::size_t i,
                          BlockSaved::Chunk& chunk) {
  chunk.qkv = u.activation(Keep::expensive, part.columns());
  part.each_product(w, w.chunks[i], chunk.qkv,
                    [&](const View& weight, const View& bias, const View& y) {
                      u.multiply(Linear{.x = s.h1, .weight = weight, .bias = bias, .y = y});
                    });
  const View qk = position_qk(u, c, w, part, chunk);
  return {.q = part.q(qk), .k = part.k(qk), .v = part.v(chunk.qkv)};
}

}  // namespace

void block_forward(UnitContext& u, const ModelConfig& c, const BlockWeights& w, Carry in,
                   BlockSaved& s, Carry& out) {
  s.chunks.resize(w.chunks.size());
  s.sum1 =
      add_norm(u, c, in, Keep::input, w.norm1_w, w.norm1_b, DropoutSite::incoming, s.h1, s.norm1);
  const MicroBatch& batch = u.micro_batch();
  if (c.latent) s.latents = make_latents(u, c, w, s.h1);
  ChunkSum projected = output_sum(u, c, w.out_b);
  for (std::size_t i = 0; i < w.chunks.size(); ++i) {
    const AttentionPart part(c, u, i);
    BlockSaved::Chunk& chunk = s.chunks[i];
    if (!u.caches.empty() && u.caches.front().of_latents()) {
      chunk.att = u.activation(Keep::expensive, part.out_columns);
      attend_latents(u, c, w, s, i, part.shape(u), chunk);
    } else {
      const HeadInputs heads = c.latent ? heads_of_latents(u, c, w, s, i, chunk)
                                        : heads_of_input(u, c, w, part, s, i, chunk);
      chunk.att = u.activation(Keep::expensive, part.out_columns);
      Attention attention{.q = heads.q,
                          .k = heads.k,
                          .v = heads.v,
                          .out = chunk.att,
                          .lse = {},
                          .documents = batch.documents,
                          .shape = part.shape(u),
                          .dropout = part.dropout(u)};
      if (!u.caches.empty()) {
        attend_cached(u, u.caches[i], attention);
      } else {
        chunk.lse = attention.lse = u.tensor(
            Keep::expensive, DType::f32, {batch.batch, part.heads.heads.count(), batch.sequence});
        attend(u, attention);
      }
    }
    u.multiply(Linear{.x = chunk.att,
                      .weight = w.chunks[i].out_w,
                      .bias = projected.bias_of_part(),
                      .y = projected.part(i)});
  }
  projected.start();
  after_attention(u, c, w, projected.finish(), s, out);
}

namespace {

/// Gradients of keys and values that are whole on every rank: each chunk gives a part, zero but for
/// the heads that it reads, and the parts are summed.
struct WholeKvGradients {
  WholeKvGradients(UnitContext& u, PartialGradients& partial, const BlockWeights& gradients)
      : g(gradients),
        k_w(zeros(u, partial, g.k_w)),
        v_w(zeros(u, partial, g.v_w)),
        k_b(zeros(u, partial, g.k_b)),
        v_b(zeros(u, partial, g.v_b)) {}

  /// The block's gradients, with chunk i's parts in place of those of whole keys and values.
  BlockWeights with_parts_of(std::size_t i) const {
    const auto part = [&](View gradient, const View& all) {
      if (gradient) gradient.data = all.row_range(static_cast<std::int64_t>(i), 1).data;
      return gradient;
    };
    BlockWeights own = g;
    own.k_w = part(g.k_w, k_w), own.v_w = part(g.v_w, v_w);
    own.k_b = part(g.k_b, k_b), own.v_b = part(g.v_b, v_b);
    return own;
  }

  const BlockWeights& g;
  View k_w, v_w, k_b, v_b;  // (chunks, elements), absent with the gradient

 private:
  View zeros(UnitContext& u, PartialGradients& partial, const View& gradient) const {
    const View all = partial.parts(gradient, std::ssize(g.chunks), u.tensor_region().cut.ranks > 1);
    if (all) u.run(Fill{.out = all});
    return all;
  }
};

/// Gradients of the norm of q or of k, which every rank has whole: each chunk gives a part, of the
/// heads that it has, and the parts are summed.
class HeadNormGradient {
 public:
  HeadNormGradient(UnitContext& u, PartialGradients& partial, const View& gradient,
                   std::size_t chunks)
      : all_(partial.parts(gradient, static_cast<std::int64_t>(chunks),
                           u.tensor_region().cut.ranks > 1)),
        write_(partial.write_to(all_, gradient)),
        columns_(gradient.elements()) {}

  /// d_x = the gradient of what was normalised, by the i-th chunk, from that of its norm.
  void backward(UnitContext& u, const ModelConfig& c, std::size_t i, NormBackward norm) const {
    norm.d_weight = all_.range(static_cast<std::int64_t>(i) * columns_, columns_);
    norm.heads = norm.sum.cols() / columns_;
    norm.kind = c.norm;
    norm.write = write_;
    u.run(norm);
  }

 private:
  View all_;  // (chunks, columns)
  Write write_;
  std::int64_t columns_;
};

/// The way back through a block, a sub-layer at a time: each takes the gradient of the sum that its
/// output was added to, or of the norm of that sum, and returns that of what it read. Sums over
/// ranks travel while gradients of weights are computed.
struct BlockBackward {
  UnitContext& u;
  const ModelConfig& c;
  const BlockWeights& w;
  const BlockSaved& s;
  const BlockWeights& g;  // gradients of w
  Write write;            // of g
  PartialGradients partial{u, write};
  std::optional<HeadNormGradient> q_norm = {}, k_norm = {};

  View mlp(const View& d);
  /// `beside`: the gradient that the feed-forward layer beside it makes of what both have read, of
  /// the norm where they share one.
  View attention(const View& d, const View& beside = {});

 private:
  View sum_gradient(const View& d, const NormBackward& norm);
  View output_gradient(const View& d, const Dropout& dropout, const NormBackward& norm);
  View sum_of(const View& a, const View& b) const;
  View input_gradient(const View& others, const NormBackward& norm);
  AttentionBackward attention_of(const AttentionPart& part, std::size_t i, const View& d_out);
  View chunk_attention(const AttentionPart& part, std::size_t i, AttentionBackward a);
  void projection_weights(const WholeKvGradients& kv, std::size_t i, const View& d_qkv);
};

/// The gradient of the sum that a sub-layer's output was added to from that of what became of it:
/// of the sum itself, or of its norm.
View BlockBackward::sum_gradient(const View& d, const NormBackward& norm) {
  if (!c.norms_sums()) return d;
  NormBackward of_sum = norm;
  of_sum.d_out = d;
  return norm_backward(u, c, partial, of_sum);
}

/// The gradient of a sub-layer's output from that of the sum it was added to, at all positions;
/// `norm`: of the output.
View BlockBackward::output_gradient(const View& d, const Dropout& dropout,
                                    const NormBackward& norm) {
  View local = d;
  if (dropout) {
    local = u.residual(Keep::transient, c.hidden);
    u.run(ApplyDropout{.x = d, .out = local, .dropout = dropout});
  }
  if (c.norms_outputs()) {
    NormBackward of_output = norm;
    of_output.d_out = local;
    local = norm_backward(u, c, partial, of_output);
  }
  return gather_positions(u, local, Keep::transient);
}

View BlockBackward::sum_of(const View& a, const View& b) const {
  const View sum = u.residual(Keep::transient, c.hidden);
  u.run(AddPending{.resid = a, .pending = b, .sum = sum});
  return sum;
}

/// The gradient of what a sub-layer read from that of its norm, norm.d_out, or of the same thing
/// without a norm.
View BlockBackward::input_gradient(const View& others, const NormBackward& norm) {
  if (!c.norms_inputs()) return sum_of(others, norm.d_out);
  NormBackward of_input = norm;
  of_input.d_resid = others;
  return norm_backward(u, c, partial, of_input);
}

View BlockBackward::mlp(const View& d) {
  const NormBackward behind{.sum = s.out2,
                            .weight = w.norm2_out_w,
                            .stats = s.norm2_out,
                            .d_weight = g.norm2_out_w,
                            .d_bias = g.norm2_out_b};
  const View d_sum = sum_gradient(d, behind);
  // An output that stayed pending was dropped out where it was added, in the next visit.
  const View d_out = output_gradient(d_sum, u.dropout(c, DropoutSite::incoming, 1), behind);
  ChunkSum d_h2(u, c.hidden);
  FeedForwardBackward back(u, c, w, s, d_out, g, write);
  back.input(d_h2);
  d_h2.start();
  back.weights();
  const View d_read = d_h2.finish();
  if (c.block == BlockForm::parallel_one_norm) return d_read;
  return input_gradient(d_sum, {.d_out = d_read,
                                .sum = s.sum2,
                                .weight = w.norm2_w,
                                .stats = s.norm2,
                                .d_weight = g.norm2_w,
                                .d_bias = g.norm2_b});
}

View BlockBackward::attention(const View& d, const View& beside) {
  const NormBackward behind{.sum = s.out1,
                            .weight = w.norm1_out_w,
                            .stats = s.norm1_out,
                            .d_weight = g.norm1_out_w,
                            .d_bias = g.norm1_out_b};
  const View d_sum = sum_gradient(d, behind);
  const View d_out = output_gradient(d_sum, u.dropout(c, DropoutSite::attention_out), behind);
  if (g.q_norm_w) {
    q_norm.emplace(u, partial, g.q_norm_w, w.chunks.size());
    k_norm.emplace(u, partial, g.k_norm_w, w.chunks.size());
  }
  ChunkSum d_h1(u, c.hidden);
  std::optional<LatentsBackward> latents;
  if (c.latent) latents.emplace(u, c, w, s, g, write);
  std::vector<View> d_qkv;
  for (std::size_t i = 0; i < w.chunks.size(); ++i) {
    const AttentionPart part(c, u, i);
    const AttentionBackward of_chunk = attention_of(part, i, d_out);
    if (latents) {
      latents->heads(i, of_chunk);
    } else {
      d_qkv.push_back(chunk_attention(part, i, of_chunk));
      project_back(u, part, w, w.chunks[i], d_qkv.back(), d_h1.part(i));
    }
  }
  if (latents) latents->input(d_h1);
  d_h1.start();
  u.adapter_gradients(write);
  const WholeKvGradients kv(u, partial, g);
  for (std::size_t i = 0; i < w.chunks.size(); ++i) {
    u.multiply(LinearBackwardWeight{.d_y = d_out,
                                    .x = s.chunks[i].att,
                                    .d_weight = g.chunks[i].out_w,
                                    .d_bias = i == 0 ? g.out_b : View{},
                                    .write = write});
    if (!latents) projection_weights(kv, i, d_qkv[i]);
  }
  if (latents) latents->weights();
  View d_read = d_h1.finish();
  const bool one_norm = c.block == BlockForm::parallel_one_norm;
  if (one_norm) d_read = sum_of(d_read, beside);
  return input_gradient(beside && !one_norm ? beside : d_sum, {.d_out = d_read,
                                                               .sum = s.sum1,
                                                               .weight = w.norm1_w,
                                                               .stats = s.norm1,
                                                               .d_weight = g.norm1_w,
                                                               .d_bias = g.norm1_b});
}

/// The way back through chunk i's attention, from the gradient of the output projection's sum;
/// without q, k and v.
AttentionBackward BlockBackward::attention_of(const AttentionPart& part, std::size_t i,
                                              const View& d_out) {
  const View d_att = u.activation(Keep::transient, part.out_columns);
  u.multiply(LinearBackwardInput{.d_y = d_out, .weight = w.chunks[i].out_w, .d_x = d_att});
  return {.q = {},
          .k = {},
          .v = {},
          .out = s.chunks[i].att,
          .lse = s.chunks[i].lse,
          .documents = u.micro_batch().documents,
          .d_out = d_att,
          .d_q = {},
          .d_k = {},
          .d_v = {},
          .shape = part.shape(u),
          .dropout = part.dropout(u),
          .order = u.order};
}

/// The gradient of chunk i's qkv.
View BlockBackward::chunk_attention(const AttentionPart& part, std::size_t i, AttentionBackward a) {
  const BlockSaved::Chunk& chunk = s.chunks[i];
  const View d_qkv = u.activation(Keep::transient, part.columns());
  const View qk = chunk.qk ? chunk.qk : part.qk(chunk.qkv);
  const View d_qk = chunk.qk ? u.activation(Keep::transient, qk.cols()) : part.qk(d_qkv);
  a.q = part.q(qk), a.k = part.k(qk), a.v = part.v(chunk.qkv);
  a.d_q = part.q(d_qk), a.d_k = part.k(d_qk), a.d_v = part.v(d_qkv);
  attend_backward(u, a);
  rotate(u, c, d_qk, Rope::Direction::inverse);
  if (q_norm) {
    q_norm->backward(u, c, i,
                     {.d_out = part.q(d_qk),
                      .sum = part.q(chunk.qkv),
                      .weight = w.q_norm_w,
                      .stats = chunk.q_norm,
                      .d_sum = part.q(d_qkv)});
    k_norm->backward(u, c, i,
                     {.d_out = part.k(d_qk),
                      .sum = part.k(chunk.qkv),
                      .weight = w.k_norm_w,
                      .stats = chunk.k_norm,
                      .d_sum = part.k(d_qkv)});
  }
  return d_qkv;
}

/// Gradients of the weights that make chunk i's qkv.
void BlockBackward::projection_weights(const WholeKvGradients& kv, std::size_t i,
                                       const View& d_qkv) {
  const View& own = g.chunks[i].qkv_w;
  AttentionPart(c, u, i).each_product(
      kv.with_parts_of(i), g.chunks[i], d_qkv,
      [&](const View& d_weight, const View& d_bias, const View& d_y) {
        const bool of_part = d_weight.data != own.data;  // which zeros were written to
        u.multiply(LinearBackwardWeight{.d_y = d_y,
                                        .x = s.h1,
                                        .d_weight = d_weight,
                                        .d_bias = d_bias,
                                        .write = of_part ? Write::add : write});
      });
}

}  // namespace

View block_backward(UnitContext& u, const ModelConfig& c, const BlockWeights& w,
                    const BlockSaved& s, View d, const BlockWeights& g, Write write) {
  BlockBackward back{.u = u, .c = c, .w = w, .s = s, .g = g, .write = write};
  const View d_sum2 = back.mlp(d);
  const View d_sum1 =
      c.block == BlockForm::sequential ? back.attention(d_sum2) : back.attention(d, d_sum2);
  back.partial.finish();
  u.finish_adapters();
  return d_sum1;
}

}  // namespace tessera::model
