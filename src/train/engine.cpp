#include "train/engine.hpp"

#include <omp.h>

#include "core/hash.hpp"
#include "core/version.hpp"
#include "kernels/cpu/device.hpp"
#include "plan/print.hpp"
#include "train/setup.hpp"

namespace tessera::train {
namespace {

/// Every rank of the job makes the same groups in the same order; those of one rank need no
/// communicator.
Groups make_groups(const plan::PlanInputs& in, std::int64_t rank) {
  const MeshPlace place = in.mesh.place_of(rank);
  Groups groups = self_groups();
  const auto make = [&](bool several, MeshGroup kind, std::unique_ptr<comm::Group>& group) {
    if (several)
      group = comm::make_mpi_group(in.mesh.members(rank, kind), group_shape(in, place, kind));
  };
  make(in.mesh.size() > 1, MeshGroup::world, groups.world);
  make(in.mesh.data > 1, MeshGroup::data, groups.gather);
  make(in.mesh.data > 1, MeshGroup::data, groups.reduce);
  make(in.mesh.tensor > 1, MeshGroup::tensor, groups.tensor);
  make(in.mesh.pipeline > 1, MeshGroup::pipeline, groups.forward);
  make(in.mesh.pipeline > 1, MeshGroup::pipeline, groups.backward);
  make(in.mesh.pipeline > 1, MeshGroup::ends, groups.ends);
  return groups;
}

}  // namespace

Engine::Engine(const deck::LoadedDeck& loaded, const Job& job,
               std::span<const plan::PlanShape> shapes)
    : loaded_(loaded), control_(job.control) {
  const comm::MpiSession& mpi = job.mpi;
  const deck::Deck& deck = loaded.deck;
  threads_ = thread_count(deck.run, mpi.cores());
  omp_set_num_threads(threads_);
  device_ = kernels::make_cpu_device({.threads = threads_});
  inputs_ = plan_inputs(deck, shapes, mpi.node_of(), *device_);
  place_ = inputs_.mesh.place_of(mpi.rank());
  groups_ = make_groups(inputs_, mpi.rank());
  make_plans(shapes);
  allocate(mpi);
  state_.emplace(inputs_, place_, *state_arena_);
  executor_.emplace(*device_, groups_, streams_, inputs_, job.whereabouts);
}

void Engine::make_plans(std::span<const plan::PlanShape> shapes) {
  control_.together([&] {
    for (const auto& shape : shapes) {
      plans_.emplace(shape, plan::make_plan(inputs_, shape, place_));
    }
  });
  // Ranks that were started with different decks or binaries would deadlock later; they learn it
  // here.
  Hasher hash;
  hash.add(std::string_view(to_toml(loaded_.deck))).add(std::string_view(kVersion));
  hash.add(std::string_view(kCommit));
  const char* different = "ranks made different plans: they must run one binary with one deck";
  control_.must_agree(hash.value(), different);
  for (const auto& [shape, plan] : plans_) hash.add(plan_hash(plan));
  const auto hashes = control_.gather(std::to_string(hash.value()));
  control_.together([&] {  // data ranks issue the same collectives
    for (std::size_t r = 0; r < hashes.size(); ++r) {
      MeshPlace first = inputs_.mesh.place_of(static_cast<std::int64_t>(r));
      first.data = 0;
      if (hashes[r] != hashes[static_cast<std::size_t>(inputs_.mesh.rank_of(first))])
        throw CommError(different);
    }
  });
}

void Engine::allocate(const comm::MpiSession& mpi) {
  std::int64_t state = 0, step = 0;
  for (const auto& [shape, plan] : plans_) {
    state = std::max(state, plan.arena_bytes[0]);
    step = std::max(step, plan.arena_bytes[1]);
  }
  const std::int64_t most = control_.max(state + step);  // pipeline stages differ
  control_.together([&] {
    check_budget(loaded_, inputs_.mesh, state, step);
    // All ranks of the node take theirs at once: what one sees free must do for all.
    memory::check_available(most, mpi.job().local);
  });
  control_.together([&] {  // once all have looked at what is free
    resident_before_ = memory::resident_bytes();
    state_arena_.emplace("state", memory::Tier::device, state);
    step_arena_.emplace("step", memory::Tier::device, step);
  });
  const PlanMemory memory{.state = state_arena_->base(), .step = step_arena_->base()};
  for (const auto& [shape, plan] : plans_) {
    const auto mine = total_wire_bytes(plan);
    prepared_.try_emplace(shape, PreparedPlan{.bound = BoundPlan(plan, memory),
                                              .wire = {.intra = control_.max(mine.intra),
                                                       .inter = control_.max(mine.inter)}});
  }
}

BatchShare Engine::share(const plan::PlanShape& shape) const {
  return {.data_ranks = data_ranks(),
          .data_rank = place_.data,
          .micro = shape.micro,
          .micro_batches = shape.micro_batches,
          .reduce = inputs_.reduce};
}

StepTimes Engine::run(const PreparedPlan& prepared, const Batches& batches,
                      const Executor::Hooks& hooks, StepProfile* profile) {
  const ArenaBytes& reach = prepared.bound.reach();
  high_water_ = {std::max(high_water_.state, reach.state), std::max(high_water_.step, reach.step)};
  const auto load = [&](std::int64_t k, const plan::LoadBatch& views) { batches.load(k, views); };
  return executor_->run(prepared.bound, load, hooks, profile);
}

std::vector<ArenaBytes> Engine::most_of_stages(const ArenaBytes& own) const {
  std::vector<std::uint64_t> words(2 * static_cast<std::size_t>(inputs_.mesh.pipeline));
  const auto mine = 2 * static_cast<std::size_t>(place_.pipeline);
  words[mine] = static_cast<std::uint64_t>(own.state);
  words[mine + 1] = static_cast<std::uint64_t>(own.step);
  control_.max(words);
  std::vector<ArenaBytes> all;
  for (std::size_t i = 0; i < words.size(); i += 2) {
    all.push_back({.state = static_cast<std::int64_t>(words[i]),
                   .step = static_cast<std::int64_t>(words[i + 1])});
  }
  return all;
}

plan::Ledger Engine::ledger() const {
  std::vector<const plan::Plan*> plans;
  for (const auto& [shape, plan] : plans_) plans.push_back(&plan);
  return plan::make_ledger(plans);
}

}  // namespace tessera::train
