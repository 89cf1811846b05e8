#include "core/mesh.hpp"

#include <fmt/format.h>

#include "core/enum_array.hpp"

namespace tessera {
namespace {

/// Which of the ranks that differ along a group's axes are in it with a rank: all; the first and
/// the last; so many neighbours; or those at the same place among such neighbours.
enum class Members : std::uint8_t { all, ends, neighbours, alike };

/// The axes along which a group's ranks differ, first to last in the order of the mesh.
struct GroupRow {
  MeshGroup group;
  int first_axis, last_axis;
  Members members = Members::all;
  std::int64_t Mesh::*neighbours = nullptr;
};
constexpr int order_of(std::int64_t Mesh::*size) {
  for (const Axis& a : kAxes) {
    if (a.size == size) return a.order;
  }
  return -1;
}
constexpr int kData = order_of(&Mesh::data), kTensor = order_of(&Mesh::tensor),
              kPipeline = order_of(&Mesh::pipeline);
constexpr std::array kGroups = {
    GroupRow{MeshGroup::world, 0, std::size(kAxes) - 1},
    GroupRow{MeshGroup::data, kData, kData},
    GroupRow{MeshGroup::tensor, kTensor, kTensor},
    GroupRow{MeshGroup::stage, kTensor, kData},
    GroupRow{MeshGroup::pipeline, kPipeline, kPipeline},
    GroupRow{MeshGroup::ends, kPipeline, kPipeline, Members::ends},
    GroupRow{MeshGroup::experts, kData, kData, Members::neighbours, &Mesh::experts},
    GroupRow{MeshGroup::replicas, kData, kData, Members::alike, &Mesh::experts},
    GroupRow{MeshGroup::context, kData, kData, Members::neighbours, &Mesh::context}};
static_assert(kGroups.size() == kMeshGroups);
static_assert(indexed_by(&GroupRow::group, kGroups));

}  // namespace

std::int64_t Mesh::size() const {
  std::int64_t ranks = 1;
  for (const Axis& a : kAxes) ranks *= this->*a.size;
  return ranks;
}

MeshPlace Mesh::place_of(std::int64_t rank) const {
  MeshPlace place;
  for (const Axis& a : kAxesInOrder) {
    place.*a.place = rank % (this->*a.size);
    rank /= this->*a.size;
  }
  return place;
}

std::int64_t Mesh::rank_of(const MeshPlace& place) const {
  std::int64_t rank = 0, stride = 1;
  for (const Axis& a : kAxesInOrder) {
    rank += stride * place.*a.place;
    stride *= this->*a.size;
  }
  return rank;
}

RankGroup Mesh::group_of(std::int64_t rank, MeshGroup group) const {
  const GroupRow& row = kGroups[static_cast<std::size_t>(group)];
  RankGroup found{.first = rank, .count = 1, .stride = 1};
  std::int64_t stride = 1;
  for (const Axis& a : kAxesInOrder) {
    const std::int64_t extent = this->*a.size;
    if (a.order == row.first_axis) found.stride = stride;
    if (a.order >= row.first_axis && a.order <= row.last_axis) {
      found.first -= rank / stride % extent * stride;
      found.count *= extent;
    }
    stride *= extent;
  }
  const std::int64_t last = found.count - 1, at = found.index(rank);
  const std::int64_t n = row.neighbours == nullptr ? 1 : this->*row.neighbours;
  switch (row.members) {
    case Members::all: return found;
    case Members::neighbours:
      return {.first = found.rank(at / n * n), .count = n, .stride = found.stride};
    case Members::alike:
      return {.first = found.rank(at % n), .count = found.count / n, .stride = found.stride * n};
    case Members::ends: break;
  }
  if (found.count == 1) return found;
  if (at != 0 && at != last) return {};
  return {.first = found.first, .count = 2, .stride = last * found.stride};
}

bool differ_along(MeshGroup group, std::int64_t MeshPlace::*axis) {
  const GroupRow& row = kGroups[static_cast<std::size_t>(group)];
  for (const Axis& a : kAxes) {
    if (a.place == axis) return a.order >= row.first_axis && a.order <= row.last_axis;
  }
  return false;
}

MeshPlace first_of_group(const Mesh& mesh, MeshPlace place, MeshGroup group) {
  const GroupRow& row = kGroups[static_cast<std::size_t>(group)];
  const std::int64_t data = place.data, n = row.neighbours == nullptr ? 1 : mesh.*row.neighbours;
  for (const Axis& a : kAxes) {
    if (differ_along(group, a.place)) place.*a.place = 0;
  }
  if (row.members == Members::neighbours) place.data = data / n * n;
  if (row.members == Members::alike) place.data = data % n;
  return place;
}

std::vector<int> Mesh::members(std::int64_t rank, MeshGroup group) const {
  const RankGroup g = group_of(rank, group);
  std::vector<int> all;
  for (std::int64_t i = 0; i < g.count; ++i) all.push_back(static_cast<int>(g.rank(i)));
  return all;
}

std::string to_string(const Mesh& mesh) {
  std::string text;
  for (const Axis& a : kAxes) {
    const bool data = a.size == &Mesh::data;
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ",
                        data ? mesh.batch_ranks() : mesh.*a.size, a.name);
    if (data && mesh.context > 1) text += fmt::format(" x {} context", mesh.context);
    if (data && mesh.experts > 1) text += fmt::format(" ({} expert)", mesh.experts);
  }
  return text;
}

}  // namespace tessera
