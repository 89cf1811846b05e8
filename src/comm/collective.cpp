#include "comm/collective.hpp"

#include <set>

#include "core/math.hpp"

namespace tessera::comm {
namespace {

/// The bytes sent when each other rank gets `bytes`, split by whether it is on the same node.
WireBytes to_every_peer(std::int64_t bytes, const GroupShape& group) {
  return {.intra = (group.local - 1) * bytes, .inter = (group.size - group.local) * bytes};
}

/// The bytes sent in rings, as NCCL has them: as many rings as the node has ranks, each of which
/// sends to the next node in one of them.
WireBytes rings(std::int64_t bytes, const GroupShape& group) {
  const std::int64_t all = (group.size - 1) * bytes;
  const std::int64_t inter = group.nodes > 1 ? all / group.local : 0;
  return {.intra = all - inter, .inter = inter};
}

}  // namespace

GroupShape group_shape(std::span<const int> members, std::span<const int> node_of, int member) {
  const auto node = [&](int rank) { return node_of[static_cast<std::size_t>(rank)]; };
  std::set<int> nodes;
  GroupShape shape{.size = static_cast<std::int64_t>(members.size()), .local = 0, .nodes = 0};
  for (int rank : members) {
    nodes.insert(node(rank));
    shape.local += node(rank) == node(member) ? 1 : 0;
  }
  shape.nodes = static_cast<std::int64_t>(nodes.size());
  return shape;
}

Hop among_of(const CollectiveCall& call) {
  return std::visit(
      [](const auto& c) -> Hop {
        if constexpr (requires { c.among; }) return c.among;
        if constexpr (requires { c.ranks; }) return {c.ranks, c.remote};
        return {};
      },
      call);
}

RankGroup ranks_of(const Hop& among, const GroupShape& group) {
  return among ? among.ranks : RankGroup{.first = 0, .count = group.size};
}

GroupShape shape_of(const Hop& among, const GroupShape& group) {
  if (!among) return group;
  const std::int64_t local = among.ranks.count - among.remote;
  return {.size = among.ranks.count,
          .local = local,
          .nodes = ceil_div(among.ranks.count, local),
          .carrier = group.carrier == Carrier::exchange ? Carrier::exchange : Carrier::nccl};
}

WireBytes wire_bytes(const CollectiveCall& call, const GroupShape& group) {
  struct Count {
    const GroupShape& group;
    WireBytes operator()(const AllGather& c) const {
      const std::int64_t bytes = c.shard.elements() * size_of(c.shard.type);
      if (group.carrier != Carrier::exchange && !c.among) return rings(bytes, group);
      return to_every_peer(bytes, shape_of(c.among, group));
    }
    WireBytes operator()(const ReduceScatter& c) const {
      const std::int64_t bytes = c.shard.elements() * size_of(c.wire);
      const GroupShape shape = shape_of(c.among, group);
      return shape.nccl_sums(c.wire, c.full.type) ? rings(bytes, shape)
                                                  : to_every_peer(bytes, shape);
    }
    WireBytes operator()(const Send& c) const {
      const std::int64_t bytes = c.data.elements() * size_of(c.data.type);
      return c.crosses ? WireBytes{.inter = bytes} : WireBytes{.intra = bytes};
    }
    WireBytes operator()(const Receive&) const { return {}; }
    WireBytes operator()(const AllToAll& c) const {
      return {.intra = (c.ranks.count - 1 - c.remote) * c.send.cols(),
              .inter = c.remote * c.send.cols()};
    }
    WireBytes operator()(const AllToAllV& c) const {
      const std::int64_t size = size_of(c.send.type);
      return {.intra = c.within * size, .inter = c.across * size};
    }
    WireBytes operator()(const ExchangeRows& c) const {
      const std::int64_t row = c.send.cols() * size_of(c.send.type);
      if (group.carrier == Carrier::exchange)
        return {.intra = c.within * row, .inter = c.across * row};
      const GroupShape shape = shape_of(c.among, group);
      return to_every_peer(c.send.rows() / shape.size * row, shape);
    }
    WireBytes operator()(const AllReduceWords&) const {
      return {};
    }  // control traffic: tens of bytes, or a few hundred a tensor
  };
  return std::visit(Count{group}, call);
}

std::int64_t reduce_scatter_staging(const GroupShape& group, DType wire, DType full) {
  if (group.nccl_sums(wire, full)) return size_of(wire);  // it sums in place
  const std::int64_t one_way = group.carrier != Carrier::exchange
                                   ? group.size * nccl_piece(group) * size_of(wire)
                                   : (group.size - 1) * kPiecesInFlight * piece_bytes(group);
  return wire == full ? one_way : 2 * one_way;
}

}  // namespace tessera::comm
