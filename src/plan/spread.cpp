#include "plan/spread.hpp"

namespace tessera::plan {

std::vector<RankGroup> groups_of(const Mesh& mesh, MeshGroup kind) {
  std::vector<RankGroup> all;
  for (std::int64_t r = 0; r < mesh.size(); ++r) {
    const RankGroup group = mesh.group_of(r, kind);
    if (group.first == r) all.push_back(group);
  }
  return all;
}

Spread widest(MeshGroup kind, const PlanInputs& in) {
  Spread most;
  for (const RankGroup& group : groups_of(in.mesh, kind)) {
    const auto shape = group_shape(in, in.mesh.place_of(group.first), kind);
    if (shape.nodes > most.nodes) most = {group.first, shape.nodes};
  }
  return most;
}

std::optional<std::string> tensor_over_nodes(const PlanInputs& in) {
  const Spread spread = widest(MeshGroup::tensor, in);
  if (spread.nodes == 1) return std::nullopt;
  return fmt::format(
      "tensor ranks {}-{} are on {} nodes, but tensor ranks talk most: let parallel.tensor divide "
      "the ranks of a node, and ranks fill nodes in order (srun --distribution=block)",
      spread.first, spread.first + in.mesh.tensor - 1, spread.nodes);
}

}  // namespace tessera::plan
