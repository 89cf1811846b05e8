#include "train/execution/agreement.hpp"

#include <algorithm>
#include <set>

#include "core/hash.hpp"
#include "plan/proof/meetings.hpp"

namespace tessera::train {
namespace {

/// Every rank's, by world rank.
std::vector<std::uint64_t> of_all_ranks(std::uint64_t own, const comm::Control& control) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(control.size()));
  all[static_cast<std::size_t>(control.rank())] = own;
  control.max(all);
  return all;
}

std::size_t rank_index(const Mesh& mesh, const MeshPlace& place) {
  return static_cast<std::size_t>(mesh.rank_of(place));
}

void check_data_groups(const Plans& plans, const Mesh& mesh, const comm::Control& control) {
  Hasher hash;
  for (const auto& [shape, plan] : plans) hash.add(plan::plan_hash(plan));
  const auto hashes = of_all_ranks(hash.value(), control);
  control.together([&] {
    for (std::size_t r = 0; r < hashes.size(); ++r) {
      MeshPlace first = mesh.place_of(static_cast<std::int64_t>(r));
      first.data = 0;
      if (hashes[r] != hashes[rank_index(mesh, first)]) throw CommError(kDifferentPlans);
    }
  });
}

/// The first stages of pipelines, one of each kind.
std::vector<MeshPlace> distinct_pipelines(const std::vector<std::uint64_t>& hashes,
                                          const Mesh& mesh) {
  std::set<std::vector<std::uint64_t>> kinds;
  std::vector<MeshPlace> distinct;
  for (std::int64_t r = 0; r < mesh.size(); ++r) {
    MeshPlace place = mesh.place_of(r);
    if (place.pipeline > 0) continue;
    std::vector<std::uint64_t> kind;
    for (place.pipeline = 0; place.pipeline < mesh.pipeline; ++place.pipeline)
      kind.push_back(hashes[rank_index(mesh, place)]);
    if (kinds.insert(std::move(kind)).second) distinct.push_back(mesh.place_of(r));
  }
  return distinct;
}

}  // namespace

std::int64_t prove_together(const Plans& plans, const plan::PlanInputs& inputs,
                            const comm::Control& control) {
  const Mesh& mesh = inputs.layout.mesh;
  check_data_groups(plans, mesh, control);
  if (mesh.pipeline == 1) return 0;
  Hasher hash;
  std::vector<std::string> own;  // by shape
  for (const auto& [shape, plan] : plans) {
    own.push_back(plan::to_bytes(plan::meetings_of(plan)));
    hash.add(std::string_view(own.back()));
  }
  const auto distinct = distinct_pipelines(of_all_ranks(hash.value(), control), mesh);
  MeshPlace first = mesh.place_of(control.rank());
  first.pipeline = 0;
  const bool sends = std::ranges::count(distinct, first) > 0;
  std::int64_t meetings = 0;
  for (const std::string& of_shape : own) {
    const auto all = control.gather(sends ? of_shape : "");
    control.together([&] {
      if (control.rank() != 0) return;
      for (MeshPlace place : distinct) {
        std::vector<plan::Meetings> stages;
        for (; place.pipeline < mesh.pipeline; ++place.pipeline)
          stages.push_back(plan::from_bytes(all[rank_index(mesh, place)]));
        meetings += plan::check_pipeline(stages);
      }
    });
  }
  return meetings;
}

}  // namespace tessera::train
