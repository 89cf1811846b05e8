#include "model/context_parallel.hpp"

#include <functional>
#include <initializer_list>
#include <vector>

namespace tessera::model {

using namespace kernels;

namespace {

/// Sequences [first, first + count) of a view of at least two axes behind them.
View sequences(View v, std::int64_t first, std::int64_t count) {
  v.data += first * v.extent(1) * v.ld * size_of(v.type);
  v.shape[0] = count;
  return v;
}

/// One of this rank's chunks: the micro-batch's sequences that it is in all samples, and its first
/// token there.
struct OwnChunk {
  std::int64_t first_sequence, first_token;
  View of(const View& v, std::int64_t samples) const {
    return v ? sequences(v, first_sequence, samples) : v;
  }
};

OwnChunk own_chunk(const UnitContext& u, std::int64_t share, std::int64_t half) {
  const ContextRegion& r = u.context;
  return {.first_sequence = (share * 2 + half) * r.samples,
          .first_token =
              r.chunks.chunk_of(r.first() + share, half) * u.micro_batch().sequence};
}

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
    const View own = u.activation(Keep::transient, 2 * columns);
    u.run(Convert{.x = k, .out = own.col_range(0, columns)});
    u.run(Convert{.x = v, .out = own.col_range(columns, columns)});
    View by_share = own;
    if (r.ranks > 1) {
      by_share = u.tensor(Keep::transient, u.compute(), {r.ranks * own.rows(), 2 * columns});
      r.run(comm::AllGather{.shard = own, .full = by_share});
    }
    both = all_tokens(u, u.compute(), 2 * columns);
    u.run(ordered(u, by_share, both, OrderChunks::To::tokens));
  }
  View k() const { return both.col_range(0, columns); }
  View v() const { return both.col_range(columns, columns); }

  std::int64_t columns;  // of k
  View both;
};

void attend_gathered(UnitContext& u, const Attention& a) {
  const ContextRegion& r = u.context;
  const AllKeys keys(u, a.k, a.v);
  for (std::int64_t share = 0; share < r.own(); ++share) {
    for (const std::int64_t half : {0, 1}) {
      const OwnChunk chunk = own_chunk(u, share, half);
      Attention own = a;
      own.q = chunk.of(a.q, r.samples), own.out = chunk.of(a.out, r.samples);
      own.lse = chunk.of(a.lse, r.samples);
      own.k = keys.k(), own.v = keys.v();
      own.first = chunk.first_token;
      u.run(own);
    }
  }
}

/// Each share's queries give a part of the gradients of all keys. The parts are summed, in f32, over
/// shares and ranks in a tree.
void attend_gathered_backward(UnitContext& u, const AttentionBackward& a) {
  const ContextRegion& r = u.context;
  const AllKeys keys(u, a.k, a.v);
  const std::int64_t columns = 2 * keys.columns, n = keys.both.elements();
  const View parts = u.tensor(Keep::transient, DType::f32, {r.own(), n});
  for (std::int64_t share = 0; share < r.own(); ++share) {
    View part = keys.both;
    part.data = parts.row_range(share, 1).data, part.type = DType::f32;
    // The second half is of later tokens: its queries see all keys that the first half's see.
    for (const std::int64_t half : {1, 0}) {
      const OwnChunk chunk = own_chunk(u, share, half);
      AttentionBackward own = a;
      for (View AttentionBackward::* of :
           {&AttentionBackward::q, &AttentionBackward::out, &AttentionBackward::lse,
            &AttentionBackward::d_out, &AttentionBackward::d_q})
        own.*of = chunk.of(a.*of, r.samples);
      own.k = keys.k(), own.v = keys.v();
      own.d_k = part.col_range(0, keys.columns);
      own.d_v = part.col_range(keys.columns, keys.columns);
      own.first = chunk.first_token;
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
    const View staging = u.tensor(Keep::transient, DType::u8,
                                  {comm::reduce_scatter_staging(r.group, r.wire)});
    r.run(comm::ReduceScatter{
        .full = by_share, .shard = own, .staging = staging, .wire = r.wire});
  }
  u.run(Convert{.x = own.col_range(0, keys.columns), .out = a.d_k.matrix()});
  u.run(Convert{.x = own.col_range(keys.columns, keys.columns), .out = a.d_v.matrix()});
}

// --- All tokens of some heads -------------------------------------------------------------------

/// Columns go to the ranks that have their heads, and come back.
class HeadExchange {
 public:
  explicit HeadExchange(UnitContext& u)
      : u_(u), r_(u.context), rows_(u.micro_batch().batch * u.micro_batch().sequence) {}

  /// This rank's heads of all tokens, (samples, tokens, columns of each / ranks), of each operand of
  /// this rank's tokens, in their order.
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

View lse_of_heads(const UnitContext& u, const AttentionShape& of_rank, const View& lse) {
  return lse.reshaped({u.context.samples, of_rank.heads, u.context.sequence});
}

void attend_by_heads(UnitContext& u, Attention a) {
  HeadExchange exchange(u);
  a.shape = shape_of_rank(u, a.shape);
  const auto parts = exchange.there({a.q, a.k, a.v});
  const View out = all_tokens(u, u.compute(), parts[0].cols()), own = a.out;
  a.q = parts[0], a.k = parts[1], a.v = parts[2], a.out = out;
  a.lse = lse_of_heads(u, a.shape, a.lse);
  u.run(a);
  exchange.back(out, {own});
}

void attend_by_heads_backward(UnitContext& u, AttentionBackward a) {
  HeadExchange exchange(u);
  a.shape = shape_of_rank(u, a.shape);
  const auto parts = exchange.there({a.q, a.k, a.v, a.out, a.d_out});
  const std::vector<View> own = {a.d_q, a.d_k, a.d_v};
  const std::int64_t q = parts[0].cols(), kv = parts[1].cols();
  const View d = all_tokens(u, u.compute(), q + 2 * kv);
  a.q = parts[0], a.k = parts[1], a.v = parts[2], a.out = parts[3], a.d_out = parts[4];
  a.d_q = d.col_range(0, q), a.d_k = d.col_range(q, kv), a.d_v = d.col_range(q + kv, kv);
  a.lse = lse_of_heads(u, a.shape, a.lse);
  u.run(a);
  exchange.back(d, own);
}

// --- Share by share -----------------------------------------------------------------------------

/// Operations whose bits depend on which rows they have, made of each share's rows alone.
class ByShares {
 public:
  explicit ByShares(UnitContext& u, std::function<void(const KernelCall&)> whole)
      : u_(u),
        whole_(std::move(whole)),
        shares_(u.context.own()),
        rows_(u.micro_batch().batch * u.micro_batch().sequence) {}

  /// False where an operation is none of these.
  template <typename Operation>
  bool operator()(const Operation&) const {
    return false;
  }
  bool operator()(const Linear& a) const {
    return of_rows(a, a.x, {&Linear::x, &Linear::y, &Linear::preactivation});
  }
  bool operator()(const LinearBackwardInput& a) const {
    return of_rows(a, a.d_y,
                   {&LinearBackwardInput::d_y, &LinearBackwardInput::d_x,
                    &LinearBackwardInput::preactivation});
  }
  bool operator()(const LinearBackwardWeight& a) const {
    if (a.x.rows() != rows_) return false;
    each_share(a, {&LinearBackwardWeight::d_weight, &LinearBackwardWeight::d_bias},
               &LinearBackwardWeight::write, [&](LinearBackwardWeight& own, std::int64_t share) {
                 own.d_y = rows_of(a.d_y, share), own.x = rows_of(a.x, share);
               });
    return true;
  }
  bool operator()(const NormBackward& a) const {
    if (a.sum.extent(0) % shares_ != 0) return false;
    each_share(a, {&NormBackward::d_weight, &NormBackward::d_bias}, &NormBackward::write,
               [&](NormBackward& own, std::int64_t share) {
                 for (View NormBackward::* of :
                      {&NormBackward::d_out, &NormBackward::d_resid, &NormBackward::sum,
                       &NormBackward::d_sum})
                   own.*of = sequences_of(a.*of, share);
                 own.stats = rows_of(a.stats, share);
               });
    return true;
  }
  bool operator()(const EmbedBackward& a) const {
    TESSERA_CHECK(a.token_write == a.position_write || !a.d_position_table,
                  "tokens' gradients are added, positions' not");
    each_share(a, {&EmbedBackward::d_token_table, &EmbedBackward::d_position_table},
               &EmbedBackward::token_write, [&](EmbedBackward& own, std::int64_t share) {
                 own.position_write = own.token_write;
                 own.tokens = rows_of(a.tokens, share), own.d = sequences_of(a.d, share);
                 own.documents = sequences_of(a.documents, share);
               });
    return true;
  }
  /// Of parts that every share has.
  bool operator()(const Fill& a) const {
    const std::int64_t step = step_of(a.out);
    for (std::int64_t share = 0; step > 0 && share < shares_; ++share)
      whole_(Fill{.out = moved(a.out, share * step)});
    return step > 0;
  }

 private:
  static View moved(View v, std::int64_t elements) {
    v.data += elements * size_of(v.type);
    return v;
  }
  View rows_of(const View& v, std::int64_t share) const {
    return v ? v.row_range(share * v.rows() / shares_, v.rows() / shares_) : v;
  }
  View sequences_of(const View& v, std::int64_t share) const {
    return v ? sequences(v, share * v.extent(0) / shares_, v.extent(0) / shares_) : v;
  }
  /// Elements from a part of a gradient to that of the next share; 0: it is none.
  std::int64_t step_of(const View& gradient) const {
    for (const auto& [first, step] : u_.share_parts)
      if (gradient.data >= first.data && gradient.data < first.data + first.span_bytes())
        return step;
    return 0;
  }

  template <typename Operation>
  bool of_rows(const Operation& a, const View& rows,
               std::initializer_list<View Operation::*> operands) const {
    if (rows.rows() != rows_) return false;
    for (std::int64_t share = 0; share < shares_; ++share) {
      Operation own = a;
      for (View Operation::* of : operands) own.*of = rows_of(a.*of, share);
      whole_(own);
    }
    return true;
  }

  /// A call for each share, whose gradients are parts.
  template <typename Operation, typename F>
  void each_share(const Operation& a, std::initializer_list<View Operation::*> gradients,
                  Write Operation::* write, F&& take_rows) const {
    std::vector<ShareSum> sums;
    for (View Operation::* of : gradients)
      sums.emplace_back(u_, step_of(a.*of) > 0 ? View{} : a.*of);
    for (std::int64_t share = 0; share < shares_; ++share) {
      Operation own = a;
      take_rows(own, share);
      std::size_t i = 0;
      for (View Operation::* of : gradients) {
        const std::int64_t step = step_of(a.*of);
        own.*of = step > 0 ? moved(a.*of, share * step) : sums[i].part(share);
        if (own.*of && step == 0) own.*write = Write::overwrite;
        ++i;
      }
      whole_(own);
    }
    for (ShareSum& sum : sums) sum.finish(a.*write);
  }

  UnitContext& u_;
  std::function<void(const KernelCall&)> whole_;
  std::int64_t shares_, rows_;
};

}  // namespace

void UnitContext::run(const KernelCall& call) {
  const auto whole = [this](KernelCall own) {
    const std::int64_t bytes = device_.scratch_bytes(own);
    if (bytes > 0) {
      std::visit([&](auto& args) { args.scratch = tensor(Keep::transient, DType::u8, {bytes}); },
                 own);
    }
    device_.run(own);
  };
  if (context.own() > 1 && std::visit(ByShares(*this, whole), call)) return;
  whole(call);
}

ShareSum::ShareSum(UnitContext& u, const View& gradient) : u_(u), gradient_(gradient) {
  const std::int64_t shares = u.context.own();
  if (gradient && shares > 1)
    parts_ = u.tensor(Keep::transient, DType::f32, {shares, gradient.elements()});
}

View ShareSum::part(std::int64_t share) const {
  if (!parts_) return gradient_;
  View part = gradient_;
  part.type = DType::f32, part.data = parts_.row_range(share, 1).data;
  return part;
}

void ShareSum::finish(Write write) {
  if (!parts_) return;
  u_.run(TreeSum{
      .parts = parts_, .out = gradient_.range(0, gradient_.elements()), .write = write});
}

void rotate(UnitContext& u, Rope rope, const View& x) {
  const ContextRegion& r = u.context;
  rope.x = x;
  if (!r.cut() || r.by_document) {
    rope.documents = u.micro_batch().positions;
    if (r.cut()) rope.longest = r.sequence;
    return u.run(rope);
  }
  for (std::int64_t share = 0; share < r.own(); ++share) {
    for (const std::int64_t half : {0, 1}) {
      const OwnChunk chunk = own_chunk(u, share, half);
      rope.x = chunk.of(x, r.samples);
      rope.first_position = chunk.first_token;
      u.run(rope);
    }
  }
}

void attend(UnitContext& u, const Attention& a) {
  if (!u.context.cut()) return u.run(a);
  u.context.kind == ContextKind::heads ? attend_by_heads(u, a) : attend_gathered(u, a);
}

void attend_backward(UnitContext& u, const AttentionBackward& a) {
  if (!u.context.cut()) return u.run(a);
  u.context.kind == ContextKind::heads ? attend_by_heads_backward(u, a)
                                       : attend_gathered_backward(u, a);
}

}  // namespace tessera::model
