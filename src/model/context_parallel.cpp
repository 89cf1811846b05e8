#include "model/context_parallel.hpp"

#include <vector>

#include "model/cached.hpp"
#include "model/shares.hpp"

namespace tessera::model {

using namespace kernels;

namespace {

View all_tokens(UnitContext& u, DType type, std::int64_t columns) {
  return u.tensor(Keep::transient, type, {u.context.samples, u.context.sequence, columns});
}

OrderChunks ordered(const UnitContext& u, const View& x, const View& out, OrderChunks::To to) {
  return {.x = x.matrix(),
          .out = out.matrix(),
          .samples = u.context.samples,
          .chunks = u.context.chunks,
          .to = to};
}

// --- Keys and values of all ranks ---------------------------------------------------------------

/// Keys and values of whole sequences, (samples, tokens, columns of both).
struct AllKeys {
  AllKeys(UnitContext& u, const View& k, const View& v) : columns(k.cols()) {
    const ContextRegion& r = u.context;
    const View own = u.activation(Keep::transient, columns + v.cols());
    u.run(Convert{.x = k, .out = k_of(own)});
    u.run(Convert{.x = v, .out = v_of(own)});
    View by_share = own;
    if (r.ranks > 1) {
      by_share = u.tensor(Keep::transient, u.compute(), {r.ranks * own.rows(), own.cols()});
      r.run(comm::AllGather{.shard = own, .full = by_share});
    }
    both = all_tokens(u, u.compute(), own.cols());
    u.run(ordered(u, by_share, both, OrderChunks::To::tokens));
  }
  View k_of(const View& x) const { return x.col_range(0, columns); }
  View v_of(const View& x) const { return x.col_range(columns, x.cols() - columns); }

  std::int64_t columns;  // of k
  View both;
};

void attend_gathered(UnitContext& u, const Attention& a) {
  const ContextRegion& r = u.context;
  const AllKeys keys(u, a.k, a.v);
  for_each_own_chunk(u, [&](const OwnChunk& chunk) {
    Attention own = a;
    own.q = chunk.of(a.q, r.samples), own.out = chunk.of(a.out, r.samples);
    own.lse = chunk.of(a.lse, r.samples);
    own.k = keys.k_of(keys.both), own.v = keys.v_of(keys.both);
    own.first = chunk.first_token;
    own.dropout = chunk.of(a.dropout, r.samples);
    u.run(own);
  });
}

/// Each share's queries give a part of the gradients of all keys. The parts are summed, in f32,
/// over shares and ranks in a tree.
void attend_gathered_backward(UnitContext& u, const AttentionBackward& a) {
  const ContextRegion& r = u.context;
  const AllKeys keys(u, a.k, a.v);
  const std::int64_t columns = keys.both.cols(), n = keys.both.elements();
  const View parts = u.tensor(Keep::transient, DType::f32, {r.own(), n});
  for (std::int64_t share = 0; share < r.own(); ++share) {
    View part = keys.both;
    part.data = parts.row_range(share, 1).data, part.type = DType::f32;
    // The second half is of later tokens: its queries see all keys that the first half's see.
    for (const std::int64_t half : {1, 0}) {
      const OwnChunk chunk = own_chunk(u, share, half);
      AttentionBackward own = a;
      for (View AttentionBackward::*of :
           {&AttentionBackward::q, &AttentionBackward::out, &AttentionBackward::lse,
            &AttentionBackward::d_out, &AttentionBackward::d_q})
        own.*of = chunk.of(a.*of, r.samples);
      own.k = keys.k_of(keys.both), own.v = keys.v_of(keys.both);
      own.d_k = keys.k_of(part), own.d_v = keys.v_of(part);
      own.first = chunk.first_token;
      own.dropout = chunk.of(a.dropout, r.samples);
      own.write = half == 1 ? Write::overwrite : Write::add;
      u.run(own);
    }
  }
  View all = keys.both;
  all.data = parts.data, all.type = DType::f32;
  if (r.own() > 1) {
    all = all_tokens(u, DType::f32, columns);
    u.run(TreeSum{.parts = parts, .out = all.range(0, n)});
  }
  View by_share = u.tensor(Keep::transient, DType::f32, {n / columns, columns}), own = by_share;
  u.run(ordered(u, all, by_share, OrderChunks::To::shares));
  if (r.ranks > 1) {
    own = u.tensor(Keep::transient, DType::f32, {n / columns / r.ranks, columns});
    const View staging =
        u.tensor(Keep::transient, DType::u8, {comm::reduce_scatter_staging(r.group, DType::f32)});
    r.run(comm::ReduceScatter{.full = by_share, .shard = own, .staging = staging});
  }
  u.run(Convert{.x = keys.k_of(own), .out = a.d_k.matrix()});
  u.run(Convert{.x = keys.v_of(own), .out = a.d_v.matrix()});
}

// --- All tokens of some heads -------------------------------------------------------------------

/// Columns go to the ranks that have their heads, and come back.
class HeadExchange {
 public:
  explicit HeadExchange(UnitContext& u)
      : u_(u), r_(u.context), rows_(u.micro_batch().batch * u.micro_batch().sequence) {}

  /// This rank's heads of all tokens, (samples, tokens, columns of each / ranks), of each operand
  /// of this rank's tokens, in their order.
  std::vector<View> there(const std::vector<View>& operands) {
    std::int64_t columns = 0;
    for (const View& v : operands) columns += v.cols() / r_.ranks;
    const View send = slots(columns);
    each_slot(send, operands, [&](const View& of_operand, const View& of_slot) {
      u_.run(Convert{.x = of_operand, .out = of_slot});
    });
    const View all = all_tokens(u_, u_.compute(), columns);
    u_.run(ordered(u_, exchanged(send), all, OrderChunks::To::tokens));
    std::vector<View> parts;
    std::int64_t first = 0;
    for (const View& v : operands) {
      parts.push_back(all.col_range(first, v.cols() / r_.ranks));
      first += v.cols() / r_.ranks;
    }
    return parts;
  }
  /// The way back: `all` has the columns of all results beside each other.
  void back(const View& all, const std::vector<View>& results) {
    const View send = slots(all.cols());
    u_.run(ordered(u_, all, send, OrderChunks::To::shares));
    each_slot(exchanged(send), results, [&](const View& of_result, const View& of_slot) {
      u_.run(Convert{.x = of_slot, .out = of_result});
    });
  }

 private:
  /// A slot of this rank's rows for each rank.
  View slots(std::int64_t columns) {
    return u_.tensor(Keep::transient, u_.compute(), {r_.ranks * rows_, columns});
  }
  /// f(columns of an operand that belong to a rank, their place in the rank's slot).
  template <typename F>
  void each_slot(const View& all, const std::vector<View>& operands, F&& f) const {
    for (std::int64_t rank = 0; rank < r_.ranks; ++rank) {
      const View slot = all.row_range(rank * rows_, rows_);
      std::int64_t first = 0;
      for (const View& v : operands) {
        const std::int64_t columns = v.cols() / r_.ranks;
        f(v.matrix().col_range(rank * columns, columns), slot.col_range(first, columns));
        first += columns;
      }
    }
  }
  View exchanged(const View& send) {
    if (r_.ranks == 1) return send;
    const View receive = slots(send.cols());
    const auto bytes = [&](const View& v) {
      return View(v.data, DType::u8, {r_.ranks, v.elements() * size_of(v.type) / r_.ranks});
    };
    r_.run(comm::AllToAll{.send = bytes(send),
                          .receive = bytes(receive),
                          .ranks = {.first = 0, .count = r_.ranks, .stride = 1},
                          .remote = r_.group.size - r_.group.local});
    return receive;
  }

  UnitContext& u_;
  const ContextRegion& r_;
  std::int64_t rows_;  // of this rank
};

/// The shape of a rank's heads.
AttentionShape shape_of_rank(const UnitContext& u, AttentionShape shape) {
  const std::int64_t ranks = u.context.ranks;
  TESSERA_CHECK(shape.heads % ranks == 0 && shape.kv_heads % ranks == 0 && shape.skip == 0,
                "{} heads and {} kv heads after {} over {} context ranks", shape.heads,
                shape.kv_heads, shape.skip, ranks);
  shape.heads /= ranks, shape.kv_heads /= ranks;
  return shape;
}

/// Dropout of a rank's heads of whole sequences.
Dropout dropout_of_rank(const UnitContext& u, const AttentionShape& of_rank, Dropout dropout) {
  const ContextRegion& r = u.context;
  if (!dropout) return dropout;
  dropout.first += r.rank * of_rank.heads * r.sequence * r.sequence;
  dropout.samples = dropout.samples.range(0, r.samples);
  return dropout;
}

View lse_of_heads(const UnitContext& u, const AttentionShape& of_rank, const View& lse) {
  return lse.reshaped({u.context.samples, of_rank.heads, u.context.sequence});
}

void attend_by_heads(UnitContext& u, Attention a) {
  HeadExchange exchange(u);
  a.shape = shape_of_rank(u, a.shape);
  const auto parts = exchange.there({a.q, a.k, a.v});
  const View out = all_tokens(u, u.compute(), a.shape.heads * a.shape.values()), own = a.out;
  a.q = parts[0], a.k = parts[1], a.v = parts[2], a.out = out;
  a.lse = lse_of_heads(u, a.shape, a.lse);
  a.dropout = dropout_of_rank(u, a.shape, a.dropout);
  u.run(a);
  exchange.back(out, {own});
}

void attend_by_heads_backward(UnitContext& u, AttentionBackward a) {
  HeadExchange exchange(u);
  a.shape = shape_of_rank(u, a.shape);
  const auto parts = exchange.there({a.q, a.k, a.v, a.out, a.d_out});
  const std::vector<View> own = {a.d_q, a.d_k, a.d_v};
  const std::int64_t q = parts[0].cols(), k = parts[1].cols(), v = parts[2].cols();
  const View d = all_tokens(u, u.compute(), q + k + v);
  a.q = parts[0], a.k = parts[1], a.v = parts[2], a.out = parts[3], a.d_out = parts[4];
  a.d_q = d.col_range(0, q), a.d_k = d.col_range(q, k), a.d_v = d.col_range(q + k, v);
  a.lse = lse_of_heads(u, a.shape, a.lse);
  a.dropout = dropout_of_rank(u, a.shape, a.dropout);
  u.run(a);
  exchange.back(d, own);
}

}  // namespace

void rotate(UnitContext& u, Rope rope, const View& x) {
  const ContextRegion& r = u.context;
  if (!r.cut() || r.by_document) {
    rope.documents = u.micro_batch().positions;
    if (r.cut()) rope.longest = r.sequence;
    return for_each_beginning(u,
                              [&](std::int64_t first, std::int64_t count, std::int64_t position) {
                                rope.x = sequences(x, first, count);
                                rope.first_position = position;
                                rope.scaling.positions = position + u.whole_sequence();
                                u.run(rope);
                              });
  }
  rope.scaling.positions = u.whole_sequence();
  for_each_own_chunk(u, [&](const OwnChunk& chunk) {
    rope.x = chunk.of(x, r.samples);
    rope.first_position = chunk.first_token;
    u.run(rope);
  });
}

void attend(UnitContext& u, const Attention& a) {
  if (u.cache != nullptr) return attend_cached(u, a);
  if (!u.context.cut()) return u.run(a);
  u.context.kind == ContextKind::heads ? attend_by_heads(u, a) : attend_gathered(u, a);
}

void attend_backward(UnitContext& u, const AttentionBackward& a) {
  if (!u.context.cut()) return u.run(a);
  u.context.kind == ContextKind::heads ? attend_by_heads_backward(u, a)
                                       : attend_gathered_backward(u, a);
}

}  // namespace tessera::model
