#include "train/engine.hpp"

#include <omp.h>

#include <numeric>

#include "comm/self_group.hpp"
#include "core/hash.hpp"
#include "core/version.hpp"
#include "kernels/cpu/device.hpp"
#include "plan/print.hpp"
#include "train/setup.hpp"

namespace tessera::train {
namespace {

std::unique_ptr<comm::Group> make_data_group(const comm::GroupShape& shape) {
  if (shape.size == 1) return comm::make_self_group();
  std::vector<int> members(static_cast<std::size_t>(shape.size));
  std::iota(members.begin(), members.end(), 0);
  return comm::make_mpi_group(members, shape.local);
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
  const comm::GroupShape group = data_group(deck, mpi.job(), mpi.rank());
  data_ = {.gather = make_data_group(group), .reduce = make_data_group(group)};
  inputs_ = plan_inputs(deck, shapes, group, *device_);
  make_plans(shapes);
  allocate(mpi);
  state_.emplace(inputs_, data_.reduce->rank(), *state_arena_);
  executor_.emplace(*device_, data_, streams_, inputs_, job.whereabouts);
}

void Engine::make_plans(std::span<const plan::PlanShape> shapes) {
  control_.together([&] {
    for (const auto& shape : shapes) {
      plans_.emplace(shape, plan::make_plan(inputs_, shape, data_.reduce->rank()));
    }
  });
  // Ranks that were started with different decks or binaries would deadlock later; they learn it
  // here.
  Hasher hash;
  hash.add(std::string_view(to_toml(loaded_.deck))).add(std::string_view(kVersion));
  hash.add(std::string_view(kCommit));
  for (const auto& [shape, plan] : plans_) hash.add(plan_hash(plan));
  control_.must_agree(hash.value(),
                      "ranks made different plans: they must run one binary with one deck");
}

void Engine::allocate(const comm::MpiSession& mpi) {
  std::int64_t state = 0, step = 0;
  for (const auto& [shape, plan] : plans_) {
    state = std::max(state, plan.arena_bytes[0]);
    step = std::max(step, plan.arena_bytes[1]);
  }
  control_.together([&] {
    check_budget(loaded_, state, step);
    // All ranks of the node take theirs at once: what one sees free must do for all.
    memory::check_available(state + step, mpi.job().local);
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
          .data_rank = data_.reduce->rank(),
          .micro = shape.micro,
          .micro_batches = shape.micro_batches,
          .reduce = inputs_.reduce};
}

StepTimes Engine::run(const PreparedPlan& prepared, const Batches& batches,
                      const Executor::Observer& before) {
  const auto load = [&](std::int64_t k, const plan::LoadBatch& views) { batches.load(k, views); };
  return executor_->run(prepared.bound, load, before);
}

plan::Ledger Engine::ledger() const {
  std::vector<const plan::Plan*> plans;
  for (const auto& [shape, plan] : plans_) plans.push_back(&plan);
  return plan::make_ledger(plans);
}

}  // namespace tessera::train
