// The mesh of ranks: data x pipeline x tensor. Tensor ranks are neighbours, because they talk most,
// then data ranks; pipeline stages are farthest apart.
#pragma once

#include <cstdint>
#include <vector>

#include "core/enums.hpp"

namespace tessera {

struct MeshPlace {
  std::int64_t tensor = 0, data = 0, pipeline = 0;
  auto operator<=>(const MeshPlace&) const = default;
};

/// The groups of ranks that share collectives, each with one member or more of every kind of place
/// that the rest of the mesh leaves open.
enum class MeshGroup : std::uint8_t {
  world,
  data,      // same tensor rank and stage
  tensor,    // same data rank and stage
  pipeline,  // same tensor and data rank, in the order of stages
  ends,      // first and last of the pipeline group, which share tied embeddings
};
inline constexpr std::size_t kMeshGroups = 5;

/// Ranks first, first + stride, ..: `count` of them.
struct RankGroup {
  std::int64_t first = 0, count = 0, stride = 1;
  std::int64_t rank(std::int64_t i) const { return first + i * stride; }
  std::int64_t index(std::int64_t rank) const { return (rank - first) / stride; }
  bool operator==(const RankGroup&) const = default;
};

struct Mesh {
  std::int64_t tensor = 1, data = 1, pipeline = 1;

  std::int64_t size() const { return tensor * data * pipeline; }
  MeshPlace place_of(std::int64_t rank) const {
    return {rank % tensor, rank / tensor % data, rank / tensor / data};
  }
  std::int64_t rank_of(const MeshPlace& p) const {
    return p.tensor + tensor * (p.data + data * p.pipeline);
  }
  /// The world ranks of the group of this kind that `rank` is in; of no ranks where it is in none.
  RankGroup group_of(std::int64_t rank, MeshGroup group) const;
  /// Its ranks, ascending.
  std::vector<int> members(std::int64_t rank, MeshGroup group) const;
};

}  // namespace tessera

template <>
struct tessera::EnumWords<tessera::MeshGroup> {
  using G = tessera::MeshGroup;
  static constexpr std::array table = {
      std::pair{G::world, "world"}, std::pair{G::data, "data"}, std::pair{G::tensor, "tensor"},
      std::pair{G::pipeline, "pipeline"}, std::pair{G::ends, "ends"}};
};
