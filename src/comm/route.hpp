// Hierarchical reduction (ZeRO++, Wang et al. 2023, section 3.3): contributions are added within
// each node first, so that only sums cross between nodes.
#pragma once

#include <span>
#include <vector>

#include "comm/collective.hpp"

namespace tessera::comm {

/// Each rank starts with one slot for each rank of the group, its contribution to that rank's
/// shard. At each hop P ranks exchange equal shares of their slots, sum what they receive, and keep
/// 1/P of the slots; the last slot left is this rank's reduced shard. `outer` and `inner`: slots in
/// rank order, seen as (outer, inner), are transposed before the first hop, so that every exchange
/// is of contiguous slots.
struct Route {
  std::vector<Hop> hops;
  std::int64_t outer = 1, inner = 1;
};

/// Two hops, first among the ranks of the node, then among the ranks that have this rank's number
/// on their nodes, if there are several nodes, each has the same number of ranks, which is more
/// than one, and ranks fill node after node or are dealt round. Otherwise one hop among all ranks.
/// `node_of` is by rank of the group.
Route route_of(std::span<const int> node_of, std::int64_t rank);

/// How many neighbours each node has, if it has as many as all others; else 0.
std::int64_t neighbours_of_nodes(std::span<const int> node_of);

/// Two hops, first among `size` neighbours, a divisor of the ranks, then among those that have this
/// rank's place among theirs.
Route route_over(std::int64_t size, std::span<const int> node_of, std::int64_t rank);

}  // namespace tessera::comm
