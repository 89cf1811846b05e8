// Where the groups of a mesh lie on the job's nodes.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "plan/ir/inputs.hpp"

namespace tessera::plan {

/// All groups of one kind, in the order of their first ranks.
std::vector<RankGroup> groups_of(const Mesh& mesh, MeshGroup kind);

/// The group of one kind that lies on most nodes.
struct Spread {
  std::int64_t first = 0;  // its first rank
  std::int64_t nodes = 1;
};
Spread widest(MeshGroup kind, const PlanInputs& inputs);

/// How the groups of a rank lie on the nodes, as far as its traffic depends on it: ranks in the
/// same situation send alike.
struct Situation {
  struct Group {
    std::int64_t local = 0;  // of its ranks on this rank's node, this one among them
    std::int64_t nodes = 0;
    auto operator<=>(const Group&) const = default;
  };
  Group data, tensor, ends, experts, replicas, context;
  /// Peers on other nodes in each hop of what is summed, as it is and in blocks, then of what is
  /// gathered, over the data ranks.
  std::vector<std::int64_t> remote;
  bool next_on_other_node = false,
       previous_on_other_node = false;      // the neighbouring stage is on another node
  bool next_of_ring_on_other_node = false;  // likewise of context ranks that pass keys round
  auto operator<=>(const Situation&) const = default;
};
/// The situation of every rank.
std::vector<Situation> situations(const PlanInputs& inputs);

/// What to tell the user, and what to do, where tensor ranks are on several nodes; nothing where
/// each group is within one.
std::optional<std::string> tensor_over_nodes(const PlanInputs& inputs);

}  // namespace tessera::plan
