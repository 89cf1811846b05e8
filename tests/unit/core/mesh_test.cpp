#include "core/mesh.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace tessera {
namespace {

template <typename F>
void for_meshes(F&& f) {
  for (std::int64_t t = 1; t <= 64; ++t) {
    for (std::int64_t d = 1; t * d <= 64; ++d) {
      for (std::int64_t p = 1; t * d * p <= 64; ++p) {
        for (std::int64_t e = 1; e <= d; ++e) {
          if (d % e == 0)
            f(Mesh{.tensor = t, .data = d, .pipeline = p, .experts = e, .context = d / e});
        }
      }
    }
  }
}

/// The rank of the first stage that is in the pipeline of rank r.
std::int64_t first_stage(const Mesh& mesh, std::int64_t r) {
  MeshPlace place = mesh.place_of(r);
  place.pipeline = 0;
  return mesh.rank_of(place);
}

// Trap 1: by counting, tensor fastest, then data, then pipeline.
TEST(Mesh, RankAndPlaceAreABijection) {
  for_meshes([](const Mesh& mesh) {
    std::int64_t rank = 0;
    for (std::int64_t p = 0; p < mesh.pipeline; ++p) {
      for (std::int64_t d = 0; d < mesh.data; ++d) {
        for (std::int64_t t = 0; t < mesh.tensor; ++t, ++rank) {
          const MeshPlace place{.tensor = t, .data = d, .pipeline = p};
          ASSERT_EQ(mesh.rank_of(place), rank);
          ASSERT_EQ(mesh.place_of(rank), place);
        }
      }
    }
    ASSERT_EQ(rank, mesh.size());
  });
}

// Traps 1 and 2: the groups of one kind part the ranks that are in any, each rank agrees with the
// others of its group about who is in it, and two ranks share a data, a tensor and a pipeline group
// only with themselves.
TEST(Mesh, GroupsPartTheRanks) {
  for_meshes([](const Mesh& mesh) {
    if (mesh.size() > 16) return;
    for (std::size_t g = 0; g < kMeshGroups; ++g) {
      std::map<std::int64_t, int> seen;
      for (std::int64_t r = 0; r < mesh.size(); ++r) {
        const auto own = mesh.members(r, static_cast<MeshGroup>(g));
        const bool middle = static_cast<MeshGroup>(g) == MeshGroup::ends &&
                            mesh.place_of(r).pipeline != 0 &&
                            mesh.place_of(r).pipeline != mesh.pipeline - 1;
        ASSERT_EQ(own.empty(), middle);
        if (own.empty()) continue;
        ASSERT_EQ(std::count(own.begin(), own.end(), r), 1);
        for (int other : own) ASSERT_EQ(mesh.members(other, static_cast<MeshGroup>(g)), own);
        ASSERT_EQ(
            mesh.rank_of(first_of_group(mesh, mesh.place_of(r), static_cast<MeshGroup>(g))),
            static_cast<MeshGroup>(g) == MeshGroup::ends ? first_stage(mesh, r) : own.front());
        if (own.front() == r) {
          for (int member : own) ++seen[member];
        }
      }
      for (const auto& [rank, times] : seen) ASSERT_EQ(times, 1);
    }
    const auto size = [&](MeshGroup g) {
      return static_cast<std::int64_t>(mesh.members(0, g).size());
    };
    ASSERT_EQ(size(MeshGroup::world), mesh.size());
    ASSERT_EQ(size(MeshGroup::data), mesh.data);
    ASSERT_EQ(size(MeshGroup::tensor), mesh.tensor);
    ASSERT_EQ(size(MeshGroup::pipeline), mesh.pipeline);
    ASSERT_EQ(size(MeshGroup::ends), mesh.pipeline > 1 ? 2 : 1);
    ASSERT_EQ(size(MeshGroup::experts), mesh.experts);
    ASSERT_EQ(size(MeshGroup::replicas), mesh.data / mesh.experts);
    ASSERT_EQ(size(MeshGroup::context), mesh.context);
  });
}

// Expert ranks are neighbours among the data ranks; each has others of its replicas' groups, so
// that both together reach every data rank.
TEST(Mesh, ExpertRanksAreNeighboursOfTheDataGroup) {
  for_meshes([](const Mesh& mesh) {
    if (mesh.size() > 16) return;
    for (std::int64_t r = 0; r < mesh.size(); ++r) {
      const MeshPlace own = mesh.place_of(r);
      std::set<int> reached;
      for (const int neighbour : mesh.members(r, MeshGroup::experts)) {
        const MeshPlace place = mesh.place_of(neighbour);
        ASSERT_EQ(place.data / mesh.experts, own.data / mesh.experts);
        ASSERT_EQ(std::pair(place.tensor, place.pipeline), std::pair(own.tensor, own.pipeline));
        for (const int replica : mesh.members(neighbour, MeshGroup::replicas)) {
          ASSERT_EQ(mesh.place_of(replica).data % mesh.experts, place.data % mesh.experts);
          ASSERT_TRUE(reached.insert(replica).second);
        }
      }
      const auto data = mesh.members(r, MeshGroup::data);
      ASSERT_EQ(reached, std::set<int>(data.begin(), data.end()));
    }
  });
}

// Rank = tensor + T (context + C (batch + B pipeline)): by counting.
TEST(Mesh, ContextRanksAreFasterThanThoseThatReadOtherSamples) {
  for_meshes([](const Mesh& mesh) {
    std::int64_t r = 0;
    for (std::int64_t p = 0; p < mesh.pipeline; ++p) {
      for (std::int64_t b = 0; b < mesh.batch_ranks(); ++b) {
        for (std::int64_t c = 0; c < mesh.context; ++c) {
          for (std::int64_t t = 0; t < mesh.tensor; ++t, ++r) {
            const MeshPlace place = mesh.place_of(r);
            ASSERT_EQ(std::pair(place.data / mesh.context, place.data % mesh.context),
                      std::pair(b, c));
            ASSERT_EQ(mesh.group_of(r, MeshGroup::context).index(r), c);
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace tessera
