// Attention where ranks that divide sequences have all tokens of some heads: columns go to the
// ranks that have their heads, and come back.
#include <vector>

#include "model/context_kinds.hpp"

namespace tessera::model {

using namespace kernels;

namespace {

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

}  // namespace

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

}  // namespace tessera::model
