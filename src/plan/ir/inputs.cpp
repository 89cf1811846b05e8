#include "plan/ir/inputs.hpp"

#include <algorithm>

namespace tessera::plan {

model::TensorCut tensor_cut(const PlanInputs& in, const MeshPlace& place) {
  return {.chunks = std::max(in.tensor_chunks, in.mesh.tensor),
          .ranks = in.mesh.tensor,
          .rank = place.tensor};
}

comm::GroupShape group_shape(const PlanInputs& in, const MeshPlace& place, MeshGroup group) {
  const std::int64_t rank = in.mesh.rank_of(place);
  const auto members = in.mesh.members(rank, group);
  const auto size = static_cast<std::int64_t>(members.size());
  comm::GroupShape shape{.size = size, .local = size, .nodes = 1};
  if (!in.node_of.empty()) shape = comm::group_shape(members, in.node_of, static_cast<int>(rank));
  if (in.nccl) {
    shape.carrier =
        shape.nodes > 1 && !in.any_layout ? comm::Carrier::nccl_sums : comm::Carrier::nccl;
  }
  return shape;
}

comm::Route gradient_route(const PlanInputs& in, const MeshPlace& place) {
  std::vector<int> nodes;
  for (const int r : in.mesh.members(in.mesh.rank_of(place), MeshGroup::data))
    nodes.push_back(in.node_of.empty() ? 0 : in.node_of[static_cast<std::size_t>(r)]);
  return comm::route_of(nodes, place.data);
}

std::vector<optim::StateTensor> kept_tensors(const PlanInputs& in) {
  std::vector<optim::StateTensor> rows{{.name = "master"}};
  for (const optim::StateTensor& row : in.optimizer.state) {
    const bool of_elements =
        row.extent == optim::Extent::owned || row.extent == optim::Extent::shard;
    TESSERA_CHECK(of_elements || !row.saved, "{} is saved, but not of elements", row.name);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace tessera::plan
