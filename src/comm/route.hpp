// The way of a sum's contributions over nodes: within each node first, so that what crosses is sums
// (ZeRO++, Wang et al. 2023, section 3.3).
#pragma once

#include <span>
#include <vector>

#include "core/mesh.hpp"

namespace tessera::comm {

/// Ranks of a group that exchange with each other, this one among them; `remote` of them are on
/// other nodes.
struct Hop {
  RankGroup ranks;
  std::int64_t remote = 0;
};

/// One slot for each rank of the group sets out, in the order that transposing (outer, inner) slots
/// in rank order gives. On each hop of P ranks the slots are cut into P equal parts, part k for
/// the k-th; what P ranks sent is added, and a P-th of the slots goes on. After the last hop one is
/// left, the rank's own.
struct Route {
  std::vector<Hop> hops;
  std::int64_t outer = 1, inner = 1;
};

/// Two hops, among the ranks of the node, then among those that have this rank's number on their
/// nodes: where there are several nodes with as many ranks each, several, and ranks fill node after
/// node or are dealt round. One hop among all ranks otherwise. `node_of` is by rank of the group.
Route route_of(std::span<const int> node_of, std::int64_t rank);

}  // namespace tessera::comm
