#include "core/mesh.hpp"

namespace tessera {

std::vector<int> Mesh::members(std::int64_t rank, MeshGroup group) const {
  const MeshPlace own = place_of(rank);
  const auto in = [&](const MeshPlace& p) {
    const bool tensor_same = p.tensor == own.tensor, data_same = p.data == own.data;
    const bool stage_same = p.pipeline == own.pipeline;
    switch (group) {
      case MeshGroup::world: return true;
      case MeshGroup::data: return tensor_same && stage_same;
      case MeshGroup::tensor: return data_same && stage_same;
      case MeshGroup::pipeline: return tensor_same && data_same;
      case MeshGroup::ends: {
        const auto end = [&](std::int64_t stage) { return stage == 0 || stage == pipeline - 1; };
        return tensor_same && data_same && end(p.pipeline) && end(own.pipeline);
      }
    }
    return false;
  };
  std::vector<int> all;
  for (std::int64_t r = 0; r < size(); ++r) {
    if (in(place_of(r))) all.push_back(static_cast<int>(r));
  }
  return all;
}

}  // namespace tessera
