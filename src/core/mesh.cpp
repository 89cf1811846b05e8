#include "core/mesh.hpp"

namespace tessera {

RankGroup Mesh::group_of(std::int64_t rank, MeshGroup group) const {
  const MeshPlace p = place_of(rank);
  const std::int64_t stage = tensor * data;  // ranks of one
  switch (group) {
    case MeshGroup::world: return {0, size(), 1};
    case MeshGroup::data: return {rank_of({p.tensor, 0, p.pipeline}), data, tensor};
    case MeshGroup::tensor: return {rank_of({0, p.data, p.pipeline}), tensor, 1};
    case MeshGroup::pipeline: return {rank_of({p.tensor, p.data, 0}), pipeline, stage};
    case MeshGroup::ends: {
      const std::int64_t last = pipeline - 1;
      if (p.pipeline != 0 && p.pipeline != last) return {};
      return {rank_of({p.tensor, p.data, 0}), last > 0 ? 2 : 1, last * stage};
    }
  }
  return {};
}

std::vector<int> Mesh::members(std::int64_t rank, MeshGroup group) const {
  const RankGroup g = group_of(rank, group);
  std::vector<int> all;
  for (std::int64_t i = 0; i < g.count; ++i) all.push_back(static_cast<int>(g.rank(i)));
  return all;
}

}  // namespace tessera
