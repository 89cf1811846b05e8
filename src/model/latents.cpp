#include "model/latents.hpp"

#include <algorithm>

#include "model/cached.hpp"
#include "model/context_parallel.hpp"

namespace tessera::model {

using namespace kernels;

namespace {

/// Columns of a head's key without positions.
std::int64_t own_columns(const ModelConfig& c) { return c.head_dim - c.latent.rope; }

std::int64_t heads_of_chunk(const UnitContext& u, const ModelConfig& c) {
  return c.heads / u.tensor_region().cut.chunks;
}

/// Keys without positions, and values, as columns of what is made of a chunk's latents.
struct KeysAndValues {
  KeysAndValues(const UnitContext& u, const ModelConfig& c)
      : keys(heads_of_chunk(u, c) * own_columns(c)), values(heads_of_chunk(u, c) * c.values()) {}

  View k(const View& kv) const { return kv.col_range(0, keys); }
  View v(const View& kv) const { return kv.col_range(keys, values); }

  std::int64_t keys, values;
};

/// f(columns of all latents, columns of the chunk's) for each latent of which a chunk makes a part.
template <typename F>
void each_part(const UnitContext& u, const ModelConfig& c, std::int64_t chunk, F&& f) {
  const std::int64_t chunks = u.tensor_region().cut.chunks;
  std::int64_t begin = 0, own = 0;
  for (const std::int64_t columns : {c.latent.q, c.latent.kv, c.latent.rope}) {
    const std::int64_t part = columns / chunks;
    if (part > 0)
      f(Range{begin + chunk * part, begin + (chunk + 1) * part}, Range{own, own + part});
    begin += columns, own += part;
  }
}

View columns_in(const View& x, Range columns) {
  return x.col_range(columns.begin, columns.count());
}

/// Chunks' products of the input, put together.
View all_columns(UnitContext& u, const ModelConfig& c, const BlockWeights& w, const View& h) {
  const TensorCut& cut = u.tensor_region().cut;
  const std::int64_t all = c.latent.columns(), rows = h.rows();
  const View latents = u.activation(Keep::expensive, all);
  if (cut.chunks == 1) {
    u.multiply(Linear{.x = h, .weight = w.chunks[0].latent_w, .y = latents});
    return latents;
  }
  const View parts = u.tensor(Keep::transient, u.compute(), {cut.chunks, rows, all / cut.chunks});
  const auto part = [&](std::int64_t chunk) {
    return parts.row_range(chunk * rows, rows)
        .reshaped({h.extent(0), h.extent(1), all / cut.chunks});
  };
  for (std::int64_t i = 0; i < cut.own(); ++i) {
    u.multiply(Linear{.x = h,
                      .weight = w.chunks[static_cast<std::size_t>(i)].latent_w,
                      .y = part(cut.first() + i)});
  }
  if (cut.ranks > 1) {
    u.tensor_region().run(comm::AllGather{
        .shard = parts.row_range(cut.first() * rows, cut.own() * rows), .full = parts});
  }
  for (std::int64_t chunk = 0; chunk < cut.chunks; ++chunk) {
    each_part(u, c, chunk, [&](Range to, Range from) {
      u.run(Convert{.x = columns_in(part(chunk), from), .out = columns_in(latents, to)});
    });
  }
  return latents;
}

/// Positions of keys, in place: the same of all heads.
void rotate_keys(UnitContext& u, const ModelConfig& c, const View& x, Rope::Direction direction) {
  Rope rope = rope_of(u, c, direction);
  rope.head_dim = c.latent.rope, rope.first_column = 0;
  rotate(u, rope, x);
}

}  // namespace

LatentsSaved make_latents(UnitContext& u, const ModelConfig& c, const BlockWeights& w,
                          const View& h) {
  const LatentColumns columns(c);
  LatentsSaved s;
  s.all = all_columns(u, c, w, h);
  if (c.latent.q > 0) {
    s.q = u.activation(Keep::cheap, c.latent.q);
    norm_heads(u, c, columns.q(s.all), w.q_latent_norm_w, s.q, s.q_stats);
  }
  s.kv = u.activation(Keep::cheap, c.latent.kv);
  norm_heads(u, c, columns.kv(s.all), w.kv_latent_norm_w, s.kv, s.kv_stats);
  s.rope = u.activation(Keep::cheap, c.latent.rope);
  u.run(Convert{.x = columns.rope(s.all), .out = s.rope});
  rotate_keys(u, c, s.rope, Rope::Direction::forward);
  return s;
}

/// The queries of chunk i's heads.
static View queries_of(UnitContext& u, const ModelConfig& c, const BlockWeights& w,
                       const BlockSaved& s, std::size_t i) {
  const View q = u.activation(Keep::expensive, heads_of_chunk(u, c) * c.head_dim);
  u.multiply(Linear{.x = s.latents.q ? s.latents.q : s.h1, .weight = w.chunks[i].qkv_w, .y = q});
  rotate(u, rope_of(u, c, Rope::Direction::forward), q);
  return q;
}

HeadInputs heads_of_latents(UnitContext& u, const ModelConfig& c, const BlockWeights& w,
                            const BlockSaved& s, std::size_t i, BlockSaved::Chunk& chunk) {
  const KeysAndValues columns(u, c);
  const std::int64_t heads = heads_of_chunk(u, c);
  const LatentsSaved& latents = s.latents;
  chunk.qkv = queries_of(u, c, w, s, i);
  chunk.kv = u.activation(Keep::expensive, columns.keys + columns.values);
  u.multiply(Linear{.x = latents.kv, .weight = w.chunks[i].kv_w, .y = chunk.kv});
  chunk.qk = u.activation(Keep::cheap, heads * c.head_dim);
  u.run(JoinHeads{
      .own = columns.k(chunk.kv), .shared = latents.rope, .out = chunk.qk, .heads = heads});
  return {.q = chunk.qkv, .k = chunk.qk, .v = columns.v(chunk.kv)};
}

/// What queries (B, T, H, latent + R) see of their sequences' latents: (B, T, H latent).
static void attend_to_latents(UnitContext& u, AttentionShape shape, const View& q,
                              const View& latents, const View& out) {
  shape.kv_heads = 1, shape.group = shape.skip = 0;
  shape.head_dim = q.cols() / shape.heads, shape.value_dim = out.cols() / shape.heads;
  u.run(Attention{.q = q,
                  .k = latents,
                  .v = latents.col_range(0, shape.value_dim),
                  .out = out,
                  .lse = {},
                  .documents = {},
                  .cached = u.micro_batch().cached,
                  .pages = u.micro_batch().pages,
                  .shape = shape,
                  .dropout = {}});
}

void attend_latents(UnitContext& u, const ModelConfig& c, const BlockWeights& w,
                    const BlockSaved& s, std::size_t i, const AttentionShape& shape,
                    BlockSaved::Chunk& chunk) {
  const MicroBatch& batch = u.micro_batch();
  const View& latents = u.caches.front().k;
  if (i == 0) {  // all chunks' heads make theirs of the same latents
    remember(u, s.latents.kv, latents.col_range(0, c.latent.kv));
    remember(u, s.latents.rope, latents.col_range(c.latent.kv, c.latent.rope));
  }
  if (batch.begins && batch.sequence > 1) {  // heads of many tokens are narrower than latents
    const HeadInputs heads = heads_of_latents(u, c, w, s, i, chunk);
    return u.run(Attention{.q = heads.q,
                           .k = heads.k,
                           .v = heads.v,
                           .out = chunk.att,
                           .lse = {},
                           .documents = {},
                           .shape = shape,
                           .dropout = {}});
  }
  const std::int64_t own = own_columns(c), latent = c.latent.kv, wide = latent + c.latent.rope,
                     values = c.values();
  const View queries = queries_of(u, c, w, s, i), &kv_w = w.chunks[i].kv_w;
  const View q = u.activation(Keep::transient, shape.heads * wide),
             seen = u.activation(Keep::transient, shape.heads * latent);
  for (std::int64_t h = 0; h < shape.heads; ++h) {
    const View of_head = queries.col_range(h * c.head_dim, c.head_dim),
               to = q.col_range(h * wide, wide);
    u.run(LinearBackwardInput{.d_y = of_head.col_range(0, own),
                              .weight = kv_w.row_range(h * own, own),
                              .d_x = to.col_range(0, latent)});
    u.run(Convert{.x = of_head.col_range(own, c.latent.rope),
                  .out = to.col_range(latent, c.latent.rope)});
  }
  attend_to_latents(u, shape, q, latents, seen);
  for (std::int64_t h = 0; h < shape.heads; ++h) {
    u.run(Linear{.x = seen.col_range(h * latent, latent),
                 .weight = kv_w.row_range(shape.heads * own + h * values, values),
                 .y = chunk.att.col_range(h * values, values)});
  }
}

LatentsBackward::LatentsBackward(UnitContext& u, const ModelConfig& c, const BlockWeights& w,
                                 const BlockSaved& s, const BlockWeights& gradients, Write write)
    : u_(u),
      c_(c),
      w_(w),
      s_(s),
      g_(gradients),
      write_(write),
      columns_(c),
      d_latents_(u, c.latent.columns()) {}

void LatentsBackward::heads(std::size_t i, AttentionBackward a) {
  const KeysAndValues columns(u_, c_);
  const BlockSaved::Chunk& chunk = s_.chunks[i];
  const std::int64_t heads = heads_of_chunk(u_, c_);
  const View d_q = u_.activation(Keep::transient, chunk.qkv.cols()),
             d_k = u_.activation(Keep::transient, chunk.qk.cols()),
             d_kv = u_.activation(Keep::transient, chunk.kv.cols());
  a.q = chunk.qkv, a.k = chunk.qk, a.v = columns.v(chunk.kv);
  a.d_q = d_q, a.d_k = d_k, a.d_v = columns.v(d_kv);
  attend_backward(u_, a);
  rotate(u_, rope_of(u_, c_, Rope::Direction::inverse), d_q);
  const View d = d_latents_.part(i);
  u_.run(
      SplitHeads{.d = d_k, .d_own = columns.k(d_kv), .d_shared = columns_.rope(d), .heads = heads});
  u_.multiply(LinearBackwardInput{.d_y = d_kv, .weight = w_.chunks[i].kv_w, .d_x = columns_.kv(d)});
  if (s_.latents.q) {
    u_.multiply(
        LinearBackwardInput{.d_y = d_q, .weight = w_.chunks[i].qkv_w, .d_x = columns_.q(d)});
  }
  d_q_.push_back(d_q), d_kv_.push_back(d_kv);
}

/// d = the gradient of a latent from that of its norm.
void LatentsBackward::norm(const View& d_out, const View& of, const View& stats, const View& weight,
                           const View& gradient, const View& d) {
  u_.run(NormBackward{.d_out = d_out,
                      .d_resid = {},
                      .sum = of,
                      .weight = weight,
                      .stats = stats,
                      .d_sum = d,
                      .d_weight = gradient,
                      .kind = c_.norm,
                      .write = write_});
}

/// The chunk's columns of latents' gradient.
View LatentsBackward::of_chunk(const View& all, std::size_t i) {
  const TensorCut& cut = u_.tensor_region().cut;
  if (cut.chunks == 1) return all;
  const View own = u_.activation(Keep::transient, all.cols() / cut.chunks);
  each_part(u_, c_, cut.first() + static_cast<std::int64_t>(i), [&](Range from, Range to) {
    u_.run(Convert{.x = columns_in(all, from), .out = columns_in(own, to)});
  });
  return own;
}

void LatentsBackward::input(const ChunkSum& d_h) {
  d_latents_.start();
  const LatentsSaved& s = s_.latents;
  for (std::size_t i = 0; i < d_q_.size(); ++i) {
    u_.multiply(LinearBackwardWeight{
        .d_y = d_q_[i], .x = s.q ? s.q : s_.h1, .d_weight = g_.chunks[i].qkv_w, .write = write_});
    u_.multiply(LinearBackwardWeight{
        .d_y = d_kv_[i], .x = s.kv, .d_weight = g_.chunks[i].kv_w, .write = write_});
  }
  // Every rank goes on with the gradients of all latents, at all positions.
  const View sum = gather_positions(u_, d_latents_.finish(), Keep::transient),
             d = u_.activation(Keep::transient, c_.latent.columns());
  if (s.q) {
    norm(columns_.q(sum), columns_.q(s.all), s.q_stats, w_.q_latent_norm_w, g_.q_latent_norm_w,
         columns_.q(d));
  }
  norm(columns_.kv(sum), columns_.kv(s.all), s.kv_stats, w_.kv_latent_norm_w, g_.kv_latent_norm_w,
       columns_.kv(d));
  u_.run(Convert{.x = columns_.rope(sum), .out = columns_.rope(d)});
  rotate_keys(u_, c_, columns_.rope(d), Rope::Direction::inverse);
  for (std::size_t i = 0; i < d_q_.size(); ++i) {
    d_own_.push_back(of_chunk(d, i));
    Summands products(u_, d_h.part(i), s.q ? 1 : 2);
    u_.multiply(LinearBackwardInput{
        .d_y = d_own_[i], .weight = w_.chunks[i].latent_w, .d_x = products.next()});
    if (!s.q) {
      u_.multiply(LinearBackwardInput{
          .d_y = d_q_[i], .weight = w_.chunks[i].qkv_w, .d_x = products.next()});
    }
    products.finish();
  }
}

void LatentsBackward::weights() {
  for (std::size_t i = 0; i < d_own_.size(); ++i) {
    u_.multiply(LinearBackwardWeight{
        .d_y = d_own_[i], .x = s_.h1, .d_weight = g_.chunks[i].latent_w, .write = write_});
  }
}

}  // namespace tessera::model
