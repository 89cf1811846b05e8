#include "comm/collective.hpp"

#include <algorithm>

namespace tessera::comm {
namespace {

/// `bytes` to each other rank, split by whether it shares the node.
WireBytes to_every_peer(std::int64_t bytes, const GroupShape& group, std::int64_t rank) {
  const std::int64_t node_first = rank / group.local * group.local;
  const std::int64_t on_node = std::min(group.local, group.size - node_first);
  return {.intra = (on_node - 1) * bytes, .inter = (group.size - on_node) * bytes};
}

}  // namespace

WireBytes wire_bytes(const CollectiveCall& call, const GroupShape& group, std::int64_t rank) {
  struct Count {
    const GroupShape& group;
    std::int64_t rank;
    WireBytes operator()(const AllGather& c) const {
      return to_every_peer(c.shard.elements() * size_of(c.shard.type), group, rank);
    }
    WireBytes operator()(const ReduceScatter& c) const {
      return to_every_peer(c.shard.elements() * size_of(c.wire), group, rank);
    }
    WireBytes operator()(const AllReduceWords&) const {
      return {};
    }  // control traffic, tens of bytes
  };
  return std::visit(Count{group, rank}, call);
}

std::int64_t reduce_scatter_staging(const GroupShape& group, DType wire) {
  const std::int64_t one_way = (group.size - 1) * kPiecesInFlight * piece_bytes(group);
  return wire == DType::f32 ? one_way : 2 * one_way;
}

}  // namespace tessera::comm
