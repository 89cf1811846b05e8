#include "plan/ir/inputs.hpp"

#include <algorithm>
#include <bit>
#include <map>

namespace tessera::plan {

model::TensorCut tensor_cut(const PlanInputs& in, const MeshPlace& place) {
  return {.chunks = std::max(in.layout.tensor_chunks, in.layout.mesh.tensor),
          .ranks = in.layout.mesh.tensor,
          .rank = place.tensor,
          .expert_ranks = in.layout.mesh.experts,
          .expert_rank = place.data % in.layout.mesh.experts};
}

/// The ranks that the unit is divided among.
static RankGroup sharers(const PlanInputs& in, const model::UnitDesc& unit,
                         const MeshPlace& place) {
  return in.layout.mesh.group_of(in.layout.mesh.rank_of(place), unit.traits.shared_by);
}

optim::ParameterKind kind_of(const model::UnitDesc& unit, const model::ParamDesc& p) {
  const bool hidden =
      unit.kind == model::UnitKind::block || unit.kind == model::UnitKind::block_part;
  if (!p.is_matrix()) return optim::ParameterKind::vector;
  return hidden ? optim::ParameterKind::hidden_matrix : optim::ParameterKind::matrix;
}

bool on_both_ends(const PlanInputs& in, const model::UnitDesc& unit) {
  return in.layout.mesh.pipeline > 1 && in.model.config.tied_embeddings &&
         unit.kind == model::UnitKind::vocabulary;
}

bool gradient_in_blocks(const PlanInputs& in, const model::UnitDesc& unit) {
  // Momentum of a tied matrix is of both its uses together, which two stages have.
  const bool of_two_stages = in.optimizer.momentum && on_both_ends(in, unit);
  return in.numerics.gradient_blocks && unit.traits.block > 0 && unit.traits.trained &&
         in.layout.mesh.group_of(0, unit.traits.shared_by).count > 1 && !of_two_stages;
}
bool gradient_in_blocks(const PlanInputs& in, const model::UnitDesc& unit, const PlanShape& shape) {
  const bool later = in.optimizer.momentum && shape.compression == Compression::none;
  return !later && gradient_in_blocks(in, unit);
}
bool keeps_errors(const PlanInputs& in, const model::UnitDesc& unit) {
  return in.numerics.error_feedback && gradient_in_blocks(in, unit);
}

zero::UnitLayout unit_layout(const PlanInputs& in, const model::UnitDesc& unit,
                             const MeshPlace& place) {
  return zero::unit_layout(unit, sharers(in, unit, place).count, tensor_cut(in, place));
}

Range slice_of(const PlanInputs& in, const model::UnitDesc& unit, const zero::UnitLayout& layout,
               const MeshPlace& place) {
  return layout.shard_of(sharers(in, unit, place).index(in.layout.mesh.rank_of(place)));
}

comm::GroupShape group_shape(const PlanInputs& in, const MeshPlace& place, MeshGroup group) {
  const std::int64_t rank = in.layout.mesh.rank_of(place);
  const auto members = in.layout.mesh.members(rank, group);
  const auto size = std::ssize(members);
  comm::GroupShape shape{.size = size, .local = size, .nodes = 1};
  if (!in.layout.node_of.empty())
    shape = comm::group_shape(members, in.layout.node_of, static_cast<int>(rank));
  if (in.layout.nccl) {
    shape.carrier = shape.nodes > 1 && !in.numerics.layout_mode ? comm::Carrier::nccl_sums
                                                                : comm::Carrier::nccl;
  }
  return shape;
}

namespace {

/// Whether the groups of this kind within the data group of `place` all lie on nodes in the same
/// way. Else their members would have other routes than their neighbours, and other plans.
bool lie_alike(const PlanInputs& in, const MeshPlace& place, MeshGroup group) {
  const auto pattern = [&](std::int64_t rank) {
    std::map<int, int> numbers;
    std::vector<int> all;
    for (const int r : in.layout.mesh.members(rank, group)) {
      const int node = in.layout.node_of.empty() ? 0 : at(in.layout.node_of, r);
      all.push_back(numbers.try_emplace(node, static_cast<int>(numbers.size())).first->second);
    }
    return all;
  };
  const std::int64_t own = in.layout.mesh.rank_of(place);
  const auto data = in.layout.mesh.members(own, MeshGroup::data);
  const auto mine = pattern(own);
  return std::ranges::all_of(data, [&](int r) {
    const RankGroup of = in.layout.mesh.group_of(r, group);
    return of.first != r || pattern(r) == mine;
  });
}

/// The ranks of such a group as a route sees them: the node of each, and which is at `place`.
struct Nodes {
  std::vector<int> of;
  std::int64_t rank = 0;
};

Nodes nodes_of(const PlanInputs& in, const MeshPlace& place, MeshGroup group) {
  const std::int64_t rank = in.layout.mesh.rank_of(place);
  Nodes nodes{.of = {}, .rank = in.layout.mesh.group_of(rank, group).index(rank)};
  for (const int r : in.layout.mesh.members(rank, group))
    nodes.of.push_back(in.layout.node_of.empty() ? 0 : at(in.layout.node_of, r));
  if (group == MeshGroup::replicas && !lie_alike(in, place, group))
    std::ranges::fill(nodes.of, 0);  // one hop
  return nodes;
}

comm::Route one_hop(const Nodes& nodes) {
  return comm::route_of(std::vector<int>(nodes.of.size()), nodes.rank);
}

}  // namespace

comm::Route gradient_route(const PlanInputs& in, const MeshPlace& place, MeshGroup group) {
  const Nodes nodes = nodes_of(in, place, group);
  return comm::route_of(nodes.of, nodes.rank);
}

comm::Route gather_route(const PlanInputs& in, const MeshPlace& place, MeshGroup group) {
  const Nodes nodes = nodes_of(in, place, group);
  const comm::GroupShape shape = group_shape(in, place, group);
  if (in.sharding.secondary && group == MeshGroup::data) {
    const std::int64_t ranks = in.sharding.secondary->ranks;
    if (ranks > 0 || shape.nodes == shape.size)
      return comm::route_over(std::max<std::int64_t>(1, ranks), nodes.of, nodes.rank);
    return comm::route_of(nodes.of, nodes.rank);
  }
  // NCCL's rings cross between nodes once anyway.
  return shape.carrier != comm::Carrier::exchange ? one_hop(nodes)
                                                  : comm::route_of(nodes.of, nodes.rank);
}

comm::Route sum_route(const PlanInputs& in, const MeshPlace& place, MeshGroup group) {
  const Nodes nodes = nodes_of(in, place, group);
  const comm::Route route = comm::route_of(nodes.of, nodes.rank);
  const bool rings =
      group_shape(in, place, group).nccl_sums(in.numerics.wire, in.numerics.accumulate);
  // f32 sums are those of the tree over all ranks, wherever they are: its subtrees are as many
  // neighbours as a power of two. Sums that travel as bf16 are rounded on each hop.
  const auto neighbours = static_cast<std::uint64_t>(route.inner);
  const bool other_tree = in.numerics.order == kernels::SumOrder::fixed &&
                          in.numerics.wire == DType::f32 &&
                          (route.outer == 1 || !std::has_single_bit(neighbours));
  return rings || other_tree ? one_hop(nodes) : route;
}

comm::Route expert_route(const PlanInputs& in, const MeshPlace& place) {
  const comm::GroupShape all = group_shape(in, place, MeshGroup::experts);
  comm::Route direct{.hops = {{.ranks = {.count = all.size}, .remote = all.size - all.local}}};
  if (in.layout.expert_exchange == ExpertExchange::direct) return direct;
  const Nodes nodes = nodes_of(in, place, MeshGroup::experts);
  const std::int64_t neighbours = comm::neighbours_of_nodes(nodes.of);
  // Ranks of all groups have one plan.
  for (std::int64_t r = 0; r < in.layout.mesh.size(); ++r) {
    const MeshPlace other = in.layout.mesh.place_of(r);
    if (comm::neighbours_of_nodes(nodes_of(in, other, MeshGroup::experts).of) != neighbours)
      return direct;
  }
  return neighbours == 0 || neighbours == all.size
             ? direct
             : comm::route_over(neighbours, nodes.of, nodes.rank);
}

bool is_used(const PlanInputs& in, const ChannelRow& channel) {
  const Mesh& mesh = in.layout.mesh;
  if (channel.channel == Channel::matrices && !in.optimizer.matrices) return false;
  if (!has_several(mesh, channel) || !channel.across) return has_several(mesh, channel);
  for (std::int64_t r = 0; r < mesh.size(); ++r) {
    const MeshPlace place = mesh.place_of(r);
    if (mesh.group_of(r, channel.ranks).first != r) continue;
    const bool blocks = in.numerics.gradient_blocks.has_value();
    const auto across = [&](const comm::Route& route) { return route.hops.size() > 1; };
    if (across(gather_route(in, place, channel.ranks)) ||
        across(sum_route(in, place, channel.ranks)) ||
        (blocks && across(gradient_route(in, place, channel.ranks))))
      return true;
  }
  return false;
}

std::vector<optim::StateTensor> kept_tensors(const PlanInputs& in) {
  std::vector<optim::StateTensor> rows{{.name = "master"}};
  for (const optim::StateTensor& row : in.optimizer.state) {
    const bool of_elements = row.extent != optim::Extent::rank && row.extent != optim::Extent::node;
    TESSERA_CHECK(of_elements || !row.saved, "{} is saved, but not of elements", row.name);
    rows.push_back(row);
  }
  if (in.numerics.error_feedback) {
    rows.push_back({.name = "gradient_error", .extent = optim::Extent::shard, .required = false});
    rows.push_back({.name = "gradient_error_of_rank",
                    .type = DType::bf16,
                    .extent = optim::Extent::rank,
                    .saved = false});
  }
  if (in.optimizer.momentum) {
    for (const auto& [name, extent] : {std::pair{"error_of_mean", optim::Extent::shard},
                                       std::pair{"error_of_node", optim::Extent::node}})
      rows.push_back({.name = name, .type = DType::bf16, .extent = extent, .saved = false});
  }
  return rows;
}

}  // namespace tessera::plan
