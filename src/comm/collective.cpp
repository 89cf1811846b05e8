#include "comm/collective.hpp"

#include <set>

namespace tessera::comm {
namespace {

/// `bytes` to each other rank, split by whether it shares the node.
WireBytes to_every_peer(std::int64_t bytes, const GroupShape& group) {
  return {.intra = (group.local - 1) * bytes, .inter = (group.size - group.local) * bytes};
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

WireBytes wire_bytes(const CollectiveCall& call, const GroupShape& group) {
  struct Count {
    const GroupShape& group;
    WireBytes operator()(const AllGather& c) const {
      return to_every_peer(c.shard.elements() * size_of(c.shard.type), group);
    }
    WireBytes operator()(const ReduceScatter& c) const {
      return to_every_peer(c.shard.elements() * size_of(c.wire), group);
    }
    WireBytes operator()(const Send& c) const {
      const std::int64_t bytes = c.data.elements() * size_of(c.data.type);
      return c.crosses ? WireBytes{.inter = bytes} : WireBytes{.intra = bytes};
    }
    WireBytes operator()(const Receive&) const { return {}; }
    WireBytes operator()(const AllReduceWords&) const {
      return {};
    }  // control traffic, tens of bytes
  };
  return std::visit(Count{group}, call);
}

std::int64_t reduce_scatter_staging(const GroupShape& group, DType wire, DType full) {
  const std::int64_t one_way = (group.size - 1) * kPiecesInFlight * piece_bytes(group);
  return (wire == full ? one_way : 2 * one_way) + (full == DType::f32 ? 0 : piece_bytes(group));
}

}  // namespace tessera::comm
