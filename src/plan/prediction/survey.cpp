#include "plan/prediction/survey.hpp"

#include <algorithm>
#include <set>
#include <tuple>

#include "core/thread.hpp"
#include "plan/ir/print.hpp"
#include "plan/ir/runs.hpp"
#include "plan/passes/layers.hpp"
#include "plan/passes/make_plan.hpp"
#include "plan/prediction/spread.hpp"
#include "plan/proof/check.hpp"
#include "plan/proof/meetings.hpp"

namespace tessera::plan {
namespace {

/// Elements of a tensor rank's share of a stage's units.
std::int64_t share(const PlanInputs& in, const MeshPlace& place, const std::vector<bool>& held) {
  std::int64_t elements = 0;
  for (std::size_t u = 0; u < in.model.units.size(); ++u) {
    if (held[u]) elements += unit_layout(in, in.model.units[u], place).padded;
  }
  return elements;
}

struct Measured {
  RankFigures figures;
  std::vector<std::uint64_t> hashes;  // by shape
  std::vector<Meetings> meetings;     // likewise
};

void measure_first(const PlanInputs& in, const Plan& first, RankFigures& figures) {
  figures.flop = total_flop(first);
  for (std::size_t i = 0; i < first.ops.size(); ++i) {
    const auto bytes = wire_bytes_of(first, first.ops[i]);
    if (bytes.intra + bytes.inter == 0) continue;
    const std::int64_t times = times_of(first, static_cast<OpId>(i));
    auto& sum = figures.wire[first.ops[i].kind];
    sum.intra += times * bytes.intra, sum.inter += times * bytes.inter;
  }
  for (std::size_t u = 0; u < first.shares.size(); ++u) {
    const model::UnitDesc& unit = in.model.units[u];
    const UnitShare& share = first.shares[u];
    figures.elements[unit.traits.divided ? share.parts : 1].add(
        unit.traits.trained, in.stored(unit), share.shard * share.parts);
  }
}

/// One plan after the other: a curriculum has many.
Measured measure(const PlanInputs& in, std::span<const PlanShape> shapes, const MeshPlace& place) {
  Measured m{.figures = {.place = place}};
  for (const PlanShape& shape : shapes) {
    const Plan plan = make_plan(in, shape, place);
    m.hashes.push_back(plan_hash(plan));
    m.meetings.push_back(meetings_of(plan));
    m.figures.arenas.push_back(plan.arena_bytes);
    const bool first = m.hashes.size() == 1;
    const Ledger ledger = make_ledger(plan);
    m.figures.ledger = first ? ledger : of_both(m.figures.ledger, ledger);
    if (first) measure_first(in, plan, m.figures);
  }
  return m;
}

}  // namespace

comm::WireBytes RankFigures::sent() const {
  comm::WireBytes all;
  for (const auto& [kind, bytes] : wire) all.intra += bytes.intra, all.inter += bytes.inter;
  return all;
}

std::vector<MeshPlace> largest_places(const PlanInputs& in) {
  std::vector<MeshPlace> places;
  for (std::int64_t stage = 0; stage < in.layout.mesh.pipeline; ++stage) {
    const auto held = held_units(in, stage);
    // The last shard has the vectors, which have more state than matrices that are orthogonalised.
    const std::int64_t data = in.optimizer.matrices ? in.layout.mesh.data - 1 : 0;
    MeshPlace largest{.data = data, .pipeline = stage};
    std::int64_t most = 0;
    for (std::int64_t t = 0; t < in.layout.mesh.tensor; ++t) {
      const MeshPlace place{.tensor = t, .data = data, .pipeline = stage};
      const std::int64_t elements = share(in, place, held);
      if (elements > most) most = elements, largest = place;
    }
    places.push_back(largest);
  }
  return places;
}

std::vector<MeshPlace> distinct_places(const PlanInputs& in) {
  const auto largest = largest_places(in);
  std::set<MeshPlace> places(largest.begin(), largest.end());
  const Mesh& m = in.layout.mesh;
  const std::int64_t tensor = largest[0].tensor;
  for (const std::int64_t d : {std::int64_t{0}, m.data / 2, m.data - 1})
    places.insert({.tensor = tensor, .data = d, .pipeline = 0});
  for (std::int64_t stage = 0; stage < m.pipeline; ++stage)
    places.insert({.tensor = tensor, .data = 0, .pipeline = stage});

  const auto alike = first_with_same_shares(in);
  const auto lie = situations(in);
  // What a rank sends of matrices that go home depends on which they are, so each is of a kind of
  // its own, of as many as are looked at quickly; of more, some may send a few percent more.
  constexpr std::int64_t kQuickly = 64;
  const bool by_rank = in.optimizer.matrices && m.size() <= kQuickly;
  std::set<std::tuple<std::int64_t, bool, bool, std::int64_t, std::int64_t, Situation>> kinds;
  const auto is_new = [&](const MeshPlace& place) {
    const bool sums_losses = place.tensor == 0;
    const bool begins = place.data == 0;  // what it owns begins where units do
    const std::int64_t rank = m.rank_of(place);
    return kinds
        .insert({place.pipeline, sums_losses, begins, at(alike, place.tensor), by_rank ? rank : -1,
                 at(lie, rank)})
        .second;
  };
  for (const MeshPlace& place : places) is_new(place);
  for (std::int64_t r = 0; r < m.size(); ++r) {
    if (is_new(m.place_of(r))) places.insert(m.place_of(r));
  }
  return {places.begin(), places.end()};
}

namespace {

void check_data_ranks(std::span<const Measured> measured) {
  std::map<MeshPlace, const Measured*> first;  // of a data group
  for (const Measured& m : measured) {
    MeshPlace group = m.figures.place;
    group.data = 0;
    const Measured& other = *first.try_emplace(group, &m).first->second;
    for (std::size_t i = 0; i < m.hashes.size(); ++i)
      check_together(std::array{other.hashes[i], m.hashes[i]});
  }
}

/// Proves every pipeline all of whose stages are among the places; returns the meetings of the
/// first shape.
std::int64_t check_pipelines(std::span<const Measured> measured, const Mesh& mesh) {
  std::map<MeshPlace, std::vector<const Measured*>> pipelines;
  for (const Measured& m : measured) {
    MeshPlace pipeline = m.figures.place;
    const auto stage = static_cast<std::size_t>(std::exchange(pipeline.pipeline, 0));
    auto& stages = pipelines[pipeline];
    stages.resize(static_cast<std::size_t>(mesh.pipeline));
    stages[stage] = &m;
  }
  std::int64_t first = 0;
  for (const auto& [at, stages] : pipelines) {
    if (std::count(stages.begin(), stages.end(), nullptr) > 0) continue;
    for (std::size_t shape = stages[0]->meetings.size(); shape-- > 0;) {
      std::vector<Meetings> all;
      for (const Measured* m : stages) all.push_back(m->meetings[shape]);
      first = check_pipeline(all);
    }
  }
  return first;
}

}  // namespace

Survey survey(const PlanInputs& inputs, std::span<const PlanShape> shapes,
              std::span<const MeshPlace> places,
              std::span<const std::unique_ptr<kernels::Device>> devices) {
  std::vector<Measured> measured(places.size());
  std::vector<PlanInputs> own(devices.size(), inputs);
  for (std::size_t w = 0; w < devices.size(); ++w)
    own[w].device = devices[w].get();  // they are not shared between threads
  in_turns(devices.size(), places.size(), [&](std::size_t worker, std::size_t i) {
    measured[i] = measure(own[worker], shapes, places[i]);
  });
  check_data_ranks(measured);
  Survey survey{.ranks = {}, .meetings = check_pipelines(measured, inputs.layout.mesh)};
  for (Measured& m : measured) survey.ranks.push_back(std::move(m.figures));
  return survey;
}

std::vector<const RankFigures*> largest_of_stages(std::span<const RankFigures> figures) {
  std::map<std::int64_t, const RankFigures*> most;
  for (const RankFigures& f : figures) {
    const RankFigures*& best = most.try_emplace(f.place.pipeline, &f).first->second;
    if (f.ledger.device() > best->ledger.device()) best = &f;
  }
  std::vector<const RankFigures*> all;
  for (const auto& [stage, best] : most) all.push_back(best);
  return all;
}

}  // namespace tessera::plan
