#include "plan/prediction/spread.hpp"

#include <map>

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
  for (const RankGroup& group : groups_of(in.layout.mesh, kind)) {
    const auto shape = group_shape(in, in.layout.mesh.place_of(group.first), kind);
    if (shape.nodes > most.nodes) most = {group.first, shape.nodes};
  }
  return most;
}

std::vector<Situation> situations(const PlanInputs& in) {
  const Mesh& mesh = in.layout.mesh;
  const auto node = [&](std::int64_t r) {
    return in.layout.node_of.empty() ? 0 : at(in.layout.node_of, r);
  };
  std::vector<Situation> all(static_cast<std::size_t>(mesh.size()));
  const auto count = [&](MeshGroup kind, Situation::Group Situation::*member) {
    for (const RankGroup& group : groups_of(mesh, kind)) {
      std::map<int, std::int64_t> on;
      for (std::int64_t i = 0; i < group.count; ++i) ++on[node(group.rank(i))];
      for (std::int64_t i = 0; i < group.count; ++i) {
        at(all, group.rank(i)).*
            member = {.local = on[node(group.rank(i))], .nodes = std::ssize(on)};
      }
    }
  };
  // Ranks of a group have as many, but where secondary shards are divided over numbers of ranks
  // that nodes know nothing of.
  const bool alike = !in.sharding.secondary || in.sharding.secondary->ranks == 0;
  for (const RankGroup& group : groups_of(mesh, MeshGroup::data)) {
    for (std::int64_t i = 0; i < group.count; ++i) {
      std::vector<std::int64_t>& remote = at(all, group.rank(i)).remote;
      if (alike && i > 0) {
        remote = at(all, group.first).remote;
        continue;
      }
      const MeshPlace place = mesh.place_of(group.rank(i));
      for (const auto route : {sum_route, gradient_route, gather_route}) {
        for (const comm::Hop& hop : route(in, place, MeshGroup::data).hops)
          remote.push_back(hop.remote);
      }
    }
  }
  count(MeshGroup::data, &Situation::data);
  count(MeshGroup::tensor, &Situation::tensor);
  count(MeshGroup::ends, &Situation::ends);
  count(MeshGroup::experts, &Situation::experts);
  count(MeshGroup::replicas, &Situation::replicas);
  count(MeshGroup::context, &Situation::context);
  for (std::int64_t r = 0; r < mesh.size(); ++r) {
    const RankGroup pipeline = mesh.group_of(r, MeshGroup::pipeline);
    const auto on_other_node = [&](std::int64_t stages) {
      const std::int64_t at = pipeline.index(r) + stages;
      return node(pipeline.rank((at + pipeline.count) % pipeline.count)) != node(r);
    };
    Situation& s = at(all, r);
    if (in.layout.context.kind == ContextKind::ring) {
      const RankGroup ring = mesh.group_of(r, MeshGroup::context);
      s.next_of_ring_on_other_node = node(ring.rank((ring.index(r) + 1) % ring.count)) != node(r);
    }
    s.next_on_other_node = on_other_node(1);
    s.previous_on_other_node = on_other_node(-1);
  }
  return all;
}

std::optional<std::string> tensor_over_nodes(const PlanInputs& in) {
  const Spread spread = widest(MeshGroup::tensor, in);
  if (spread.nodes == 1) return std::nullopt;
  return fmt::format(
      "tensor ranks {}-{} are on {} nodes, but tensor ranks talk most: let parallel.tensor divide "
      "the ranks of a node, and ranks fill nodes in order (srun --distribution=block)",
      spread.first, spread.first + in.layout.mesh.tensor - 1, spread.nodes);
}

}  // namespace tessera::plan
