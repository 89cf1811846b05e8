// Attention where each rank of those that divide sequences gathers the keys and values of all.
#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "core/math.hpp"
#include "model/context_kinds.hpp"
#include "model/shares.hpp"

namespace tessera::model {

using namespace kernels;

namespace {

/// Some kv heads and the query heads that read them. Keys and values of groups travel one after
/// another, beside attention to those that came before.
struct HeadGroup {
  AttentionShape shape;
  Range heads, kv_heads;

  View q_of(const View& q) const { return of(q, heads, shape.head_dim); }
  View out_of(const View& out) const { return of(out, heads, shape.values()); }
  View k_of(const View& k) const { return of(k, kv_heads, shape.head_dim); }
  View v_of(const View& v) const { return of(v, kv_heads, shape.values()); }
  /// (B, heads, T) of B T numbers of each head, head by head.
  View lse_of(const UnitContext& u, const View& lse) const {
    const std::int64_t b = u.micro_batch().batch, t = u.micro_batch().sequence;
    return lse.range(heads.begin * b * t, heads.count() * b * t).reshaped({b, heads.count(), t});
  }
  /// Of the group's heads in one of this rank's chunks.
  Dropout dropout_of(const UnitContext& u, const OwnChunk& chunk, const Dropout& dropout) const {
    Dropout own = chunk.of(dropout, u.context.samples);
    if (own) own.first += heads.begin * u.context.sequence * u.context.sequence;
    return own;
  }

 private:
  static View of(const View& x, Range heads, std::int64_t columns) {
    return x.col_range(heads.begin * columns, heads.count() * columns);
  }
};

/// The groups of all heads of a shape, `most` of them at most.
std::vector<HeadGroup> head_groups(const AttentionShape& shape, std::int64_t most) {
  const std::int64_t count = std::min(shape.kv_heads, most),
                     each = shape.group > 0 ? shape.group : shape.heads / shape.kv_heads;
  std::vector<HeadGroup> groups;
  for (std::int64_t i = 0; i < count; ++i) {
    const Range kv = even_part(shape.kv_heads, i, count),
                heads = intersect({kv.begin * each - shape.skip, kv.end * each - shape.skip},
                                  {0, shape.heads});
    HeadGroup& group = groups.emplace_back(HeadGroup{shape, heads, kv});
    group.shape.heads = heads.count(), group.shape.kv_heads = kv.count();
    group.shape.group = each;
    group.shape.skip = std::max<std::int64_t>(shape.skip - kv.begin * each, 0);
  }
  return groups;
}

/// A group's keys and values of whole sequences, beside each other.
class AllKeys {
 public:
  /// Sends for them.
  AllKeys(UnitContext& u, const HeadGroup& group, const View& all_k, const View& all_v) {
    const ContextRegion& r = u.context;
    const View k = group.k_of(all_k), v = group.v_of(all_v);
    columns_ = k.cols();
    const View own = beside(u, k, v);
    by_share_ = own;
    if (r.ranks == 1) return;
    by_share_ = u.tensor(Keep::transient, u.compute(), {r.ranks * own.rows(), own.cols()});
    r.run(comm::AllGather{.shard = own, .full = by_share_});
  }
  /// Once they have come: (samples, tokens, columns of both).
  View in_order(UnitContext& u) const {
    const View both = all_tokens(u, u.compute(), by_share_.cols());
    u.run(ordered(u, by_share_, both, OrderChunks::To::tokens));
    return both;
  }
  View k_of(const View& both) const { return both.col_range(0, columns_); }
  View v_of(const View& both) const { return both.col_range(columns_, both.cols() - columns_); }

 private:
  std::int64_t columns_ = 0;  // of k
  View by_share_;
};

/// f(group, keys, both of them in order) for each group of heads of an operation, while keys and
/// values of the next one travel.
template <typename Operation, typename F>
void for_each_group(UnitContext& u, const Operation& a, F&& f) {
  const std::vector<HeadGroup> groups = head_groups(a.shape, u.context.groups);
  std::optional<AllKeys> next(std::in_place, u, groups[0], a.k, a.v);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const AllKeys keys = *next;
    if (i + 1 < groups.size()) next.emplace(u, groups[i + 1], a.k, a.v);
    f(groups[i], keys, keys.in_order(u));
  }
}

}  // namespace

void attend_gathered(UnitContext& u, const Attention& a) {
  const std::int64_t samples = u.context.samples;
  for_each_group(u, a, [&](const HeadGroup& group, const AllKeys& keys, const View& both) {
    for_each_own_chunk(u, [&](const OwnChunk& chunk) {
      Attention own = a;
      own.shape = group.shape;
      own.q = chunk.of(group.q_of(a.q), samples), own.out = chunk.of(group.out_of(a.out), samples);
      own.lse = chunk.of(group.lse_of(u, a.lse), samples);
      own.k = keys.k_of(both), own.v = keys.v_of(both);
      own.first = chunk.first_token;
      own.dropout = group.dropout_of(u, chunk, a.dropout);
      u.run(own);
    });
  });
}

namespace {

/// What this rank's queries of a group give of the gradients of all its keys and values, in f32:
/// those of each share, summed in a tree.
View gradients_of_all(UnitContext& u, const AttentionBackward& a, const HeadGroup& group,
                      const AllKeys& keys, const View& both) {
  const ContextRegion& r = u.context;
  const std::int64_t n = both.elements();
  const View parts = u.tensor(Keep::transient, DType::f32, {r.own(), n});
  View all = both;
  all.data = parts.data, all.type = DType::f32;
  for (std::int64_t share = 0; share < r.own(); ++share) {
    View part = all;
    part.data = parts.row_range(share, 1).data;
    // The second half is of later tokens: its queries see all keys that the first half's see.
    for (const std::int64_t half : {1, 0}) {
      const OwnChunk chunk = own_chunk(u, share, half);
      const auto of_chunk = [&](const View& of_group) { return chunk.of(of_group, r.samples); };
      AttentionBackward own = a;
      own.shape = group.shape;
      own.q = of_chunk(group.q_of(a.q)), own.d_q = of_chunk(group.q_of(a.d_q));
      own.out = of_chunk(group.out_of(a.out)), own.d_out = of_chunk(group.out_of(a.d_out));
      own.lse = of_chunk(group.lse_of(u, a.lse));
      own.k = keys.k_of(both), own.v = keys.v_of(both);
      own.d_k = keys.k_of(part), own.d_v = keys.v_of(part);
      own.first = chunk.first_token;
      own.dropout = group.dropout_of(u, chunk, a.dropout);
      own.write = half == 1 ? Write::overwrite : Write::add;
      u.run(own);
    }
  }
  if (r.own() == 1) return all;
  all = all_tokens(u, DType::f32, both.cols());
  u.run(TreeSum{.parts = parts, .out = all.range(0, n)});
  return all;
}

/// Their sums over ranks, of this rank's tokens, on their way.
View sum_over_ranks(UnitContext& u, const View& all) {
  const ContextRegion& r = u.context;
  const std::int64_t rows = all.rows(), columns = all.cols();
  const View by_share = u.tensor(Keep::transient, DType::f32, {rows, columns});
  u.run(ordered(u, all, by_share, OrderChunks::To::shares));
  if (r.ranks == 1) return by_share;
  const View own = u.tensor(Keep::transient, DType::f32, {rows / r.ranks, columns});
  const View staging =
      u.tensor(Keep::transient, DType::u8, {comm::reduce_scatter_staging(r.group, DType::f32)});
  r.run(comm::ReduceScatter{.full = by_share, .shard = own, .staging = staging});
  return own;
}

}  // namespace

/// Sums of one group travel while gradients of the next one are computed.
void attend_gathered_backward(UnitContext& u, const AttentionBackward& a) {
  std::function<void()> arrive = [] {};
  for_each_group(u, a, [&](const HeadGroup& group, const AllKeys& keys, const View& both) {
    const View own = sum_over_ranks(u, gradients_of_all(u, a, group, keys, both));
    arrive();
    arrive = [&u, &a, group, keys, own] {
      u.run(Convert{.x = keys.k_of(own), .out = group.k_of(a.d_k.matrix())});
      u.run(Convert{.x = keys.v_of(own), .out = group.v_of(a.d_v.matrix())});
    };
  });
  arrive();
}

}  // namespace tessera::model
