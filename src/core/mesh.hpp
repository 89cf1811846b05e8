// The mesh of ranks: data x pipeline x tensor. Tensor ranks are neighbours, because they
// communicate most; data ranks come next, and pipeline stages are farthest apart. What differs from
// axis to axis and from group to group is in two tables.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/enums.hpp"

namespace tessera {

/// Ranks first, first + stride, ..: `count` of them.
struct RankGroup {
  std::int64_t first = 0, count = 0, stride = 1;
  std::int64_t rank(std::int64_t i) const { return first + i * stride; }
  std::int64_t index(std::int64_t rank) const { return (rank - first) / stride; }
  bool operator==(const RankGroup&) const = default;
};

/// A rank's index on each axis.
struct MeshPlace {
  std::int64_t tensor = 0, data = 0, pipeline = 0;
  auto operator<=>(const MeshPlace&) const = default;
};

/// Kinds of groups of ranks that share collectives. A group of a kind has the ranks that agree on
/// the axes named here.
enum class MeshGroup : std::uint8_t {
  world,
  data,      // same tensor rank and stage
  tensor,    // same data rank and stage
  stage,     // same stage
  pipeline,  // same tensor and data rank, in the order of stages
  ends,      // first and last of the pipeline group, which share tied embeddings
  experts,   // neighbours of the data group, which divide each layer's experts among them
  replicas,  // those of the data group that have the same experts
  context,   // neighbours of the data group, which divide each sequence among them
};
inline constexpr std::size_t kMeshGroups = 9;

/// The size of each axis. Data ranks are those that share parameters as ZeRO says; so many
/// neighbours of them, a divisor of their number, divide experts among them (`experts`), and so
/// many divide each sequence (`context`).
struct Mesh {
  std::int64_t tensor = 1, data = 1, pipeline = 1, experts = 1, context = 1;
  bool operator==(const Mesh&) const = default;

  /// Groups of data ranks that read different samples.
  std::int64_t batch_ranks() const { return data / context; }

  std::int64_t size() const;
  MeshPlace place_of(std::int64_t rank) const;
  std::int64_t rank_of(const MeshPlace& place) const;
  /// The world ranks of the group of this kind that `rank` is in; count 0 where it is in none.
  RankGroup group_of(std::int64_t rank, MeshGroup group) const;
  /// Its ranks, ascending.
  std::vector<int> members(std::int64_t rank, MeshGroup group) const;
};

struct Axis {
  const char* name;
  const char* member;  // what one of its ranks is called
  int order;  // 0: its ranks are neighbours, 1: they are as far apart as axis 0 is long, ..
  std::int64_t Mesh::*size;
  std::int64_t MeshPlace::*place;
};

/// In the order in which people name them.
inline constexpr std::array kAxes = {
    Axis{"data", "data rank", 1, &Mesh::data, &MeshPlace::data},
    Axis{"pipeline", "stage", 2, &Mesh::pipeline, &MeshPlace::pipeline},
    Axis{"tensor", "tensor rank", 0, &Mesh::tensor, &MeshPlace::tensor}};
/// What neighbours of the data ranks divide among them.
struct Division {
  const char* name;
  std::int64_t Mesh::*ranks;  // so many neighbours, a divisor of the data ranks
};
inline constexpr std::array kDivisions = {Division{"experts", &Mesh::experts},
                                          Division{"context", &Mesh::context}};
/// Whether the ranks of such a group differ along an axis.
bool differ_along(MeshGroup group, std::int64_t MeshPlace::*axis);
/// The place of a group's first rank, for any of its ranks.
MeshPlace first_of_group(const Mesh& mesh, MeshPlace place, MeshGroup group);

/// In the order of the mesh, neighbours first.
inline constexpr auto kAxesInOrder = [] {
  auto axes = kAxes;
  for (const Axis& a : kAxes) axes[static_cast<std::size_t>(a.order)] = a;
  return axes;
}();

/// "2 data x 1 pipeline x 4 tensor", "8 data (4 expert) x ..", or "2 data x 4 context x .."
std::string to_string(const Mesh& mesh);

}  // namespace tessera

template <>
struct tessera::EnumWords<tessera::MeshGroup> {
  using G = tessera::MeshGroup;
  static constexpr std::array table = {
      std::pair{G::world, "world"},       std::pair{G::data, "data"},
      std::pair{G::tensor, "tensor"},     std::pair{G::stage, "stage"},
      std::pair{G::pipeline, "pipeline"}, std::pair{G::ends, "ends"},
      std::pair{G::experts, "experts"},   std::pair{G::replicas, "replicas"},
      std::pair{G::context, "context"}};
};
