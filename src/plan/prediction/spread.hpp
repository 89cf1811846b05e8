// Where the groups of a mesh lie on the job's nodes.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "plan/ir/inputs.hpp"

namespace tessera::plan {

/// All groups of a kind, by their first ranks.
std::vector<RankGroup> groups_of(const Mesh& mesh, MeshGroup kind);

/// The group of a kind that is on most nodes.
struct Spread {
  std::int64_t first = 0;  // its first rank
  std::int64_t nodes = 1;
};
Spread widest(MeshGroup kind, const PlanInputs& inputs);

/// How the groups of a rank lie on the nodes, as far as its traffic goes by it.
struct Situation {
  struct Group {
    std::int64_t local = 0;  // of its ranks on this rank's node, this one among them
    std::int64_t nodes = 0;
    auto operator<=>(const Group&) const = default;
  };
  Group data, tensor, ends;
  std::size_t hops = 1;  // of gradients that travel as blocks over the data ranks
  bool next_apart = false, previous_apart = false;  // the stages beside it, round the pipeline
  auto operator<=>(const Situation&) const = default;
};
/// Of every rank.
std::vector<Situation> situations(const PlanInputs& inputs);

/// What is wrong, and how to mend it, where tensor ranks are on several nodes; nothing where each
/// group is within one.
std::optional<std::string> tensor_over_nodes(const PlanInputs& inputs);

}  // namespace tessera::plan
