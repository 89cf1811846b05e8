#include "comm/collective.hpp"

namespace tessera::comm {
namespace {

/// `bytes` to each other rank, split by whether it shares the node.
WireBytes to_every_peer(std::int64_t bytes, const GroupShape& group) {
  return {.intra = (group.local - 1) * bytes, .inter = (group.size - group.local) * bytes};
}

}  // namespace

WireBytes wire_bytes(const CollectiveCall& call, const GroupShape& group) {
  struct Count {
    const GroupShape& group;
    WireBytes operator()(const AllGather& c) const {
      return to_every_peer(c.shard.elements() * size_of(c.shard.type), group);
    }
    WireBytes operator()(const ReduceScatter& c) const {
      return to_every_peer(c.shard.elements() * size_of(c.wire), group);
    }
    WireBytes operator()(const AllReduceWords&) const {
      return {};
    }  // control traffic, tens of bytes
  };
  return std::visit(Count{group}, call);
}

std::int64_t reduce_scatter_staging(const GroupShape& group, DType wire) {
  const std::int64_t one_way = (group.size - 1) * kPiecesInFlight * piece_bytes(group);
  return wire == DType::f32 ? one_way : 2 * one_way;
}

}  // namespace tessera::comm
