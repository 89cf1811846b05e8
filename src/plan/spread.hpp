// Where the groups of a mesh lie on the job's nodes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/make_plan.hpp"

namespace tessera::plan {

/// All groups of a kind, by their first ranks.
std::vector<RankGroup> groups_of(const Mesh& mesh, MeshGroup kind);

/// The group of a kind that is on most nodes.
struct Spread {
  std::int64_t first = 0;  // its first rank
  std::int64_t nodes = 1;
};
Spread widest(MeshGroup kind, const PlanInputs& inputs);

/// What is wrong, and how to mend it, where tensor ranks are on several nodes; nothing where each
/// group is within one.
std::optional<std::string> tensor_over_nodes(const PlanInputs& inputs);

}  // namespace tessera::plan
