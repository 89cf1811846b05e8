// One rank's training in a test: a plan with memory, state and an executor, without the training
// loop. Shows what a step computed, gradients included.
#pragma once

#include <optional>

#include "memory/arena.hpp"
#include "memory/disk_tier.hpp"
#include "streams/host_streams.hpp"
#include "support/models.hpp"
#include "support/temporary_directory.hpp"
#include "train/execution/executor.hpp"

namespace tessera::test {

/// The numbers that the host gives a step.
struct StepNumbers {
  double lr = 1e-2;
  double loss_scale = 1;
  std::int64_t update = 1;             // applied updates, this one among them
  std::int64_t unknown_token_in = -1;  // micro-batch with a token that the model does not have
  bool masked = false;                 // BatchKind::masked
  std::size_t plan = 0;                // 0: the run's own; else the others, from 1 on
};

struct StepShown {
  double loss = 0;           // summed over all tokens and ranks
  double norm = 0;           // of the gradient of the mean loss, before clipping
  std::int64_t targets = 0;  // of all ranks that count
  std::vector<std::int64_t> confusion;
  bool applied = false;
  std::vector<float> gradients;  // what this rank updates with, unit by unit; where the host
                                 // reaches the device's memory
};

class PlanRun {
 public:
  /// The rank at `place`; groups that are empty are of one rank.
  PlanRun(const plan::PlanInputs& inputs, kernels::Device& device, const plan::PlanShape& shape,
          train::Groups groups = {}, const MeshPlace& place = {});
  /// Any plan of these inputs, over any streams of a CPU, and others that share its memory.
  PlanRun(const plan::PlanInputs& inputs, kernels::Device& device, plan::Plan plan,
          train::Groups groups, std::unique_ptr<streams::TaskStreams> tasks,
          std::vector<plan::Plan> others = {});
  /// Any plan on any device: its memory, the host's beside it, and streams.
  PlanRun(const plan::PlanInputs& inputs, kernels::Device& device, plan::Plan plan,
          train::Groups groups, std::unique_ptr<memory::Tier> tier,
          std::unique_ptr<memory::Tier> host_tier, std::unique_ptr<streams::Streams> streams,
          std::vector<plan::Plan> others = {});
  ~PlanRun();

  /// With what the last step has left to do.
  train::ModelState& state() {
    settle();
    return *state_;
  }
  const plan::Plan& plan() const { return plan_; }
  const plan::PlanInputs& inputs() const { return inputs_; }
  const MeshPlace& place() const { return plan_.place; }

  /// Trains on global samples first_sample .., which the ranks share as data::BatchShare says.
  StepShown step(std::int64_t first_sample, const StepNumbers& numbers,
                 train::StepProfile* profile = nullptr, const train::Executor::Hooks& hooks = {});

  /// A pass of generation by one of the plans, as StepNumbers::plan: its logits.
  std::vector<float> generate(std::size_t plan, const train::Executor::Loader& load);

  /// Makes one element of the next step's gradient `value`, on this rank alone and before it is
  /// reduced.
  void spoil_next_gradient(float value);

  /// The real memory of a view of state().units().
  View real(const View& symbolic) {
    settle();
    return bound_->real(symbolic);
  }
  /// What it holds, widened to f32, wherever it lives.
  std::vector<float> values(const View& symbolic) {
    settle();
    return held(symbolic);
  }

 private:
  /// Does the update that the last step has left to the next one.
  void settle();
  std::vector<float> held(const View& symbolic);
  const memory::Arena& arena(plan::ArenaId id) const { return *arenas_[id]; }
  /// Runs everything and keeps a copy of the gradients that updates read.
  class Watching;

  plan::PlanInputs inputs_;
  std::unique_ptr<Watching> device_;
  train::Groups groups_;
  plan::Plan plan_;
  std::vector<plan::Plan> others_;
  std::optional<plan::Plan> flush_;  // where steps leave their updates to the next
  std::unique_ptr<memory::Tier> tier_, host_tier_;
  std::optional<TemporaryDirectory> disk_;
  std::unique_ptr<memory::DiskTier> disk_tier_;  // where the plan has something on disks
  train::Arenas arenas_;
  std::optional<train::ModelState> state_;
  std::optional<train::BoundPlan> bound_, bound_flush_;
  std::vector<train::BoundPlan> bound_others_;
  bool left_ = false;  // an update
  std::unique_ptr<streams::Streams> streams_;
  train::Whereabouts whereabouts_;
  std::optional<train::Executor> executor_;
};

/// This rank's slice of everything that is kept of every unit, whatever else the rank holds at this
/// ZeRO stage; or the snapshot of it.
enum class Kept : std::uint8_t { live, snapshot };
std::vector<float> slice_of_state(PlanRun& run, Kept which = Kept::live);

/// Inputs of a run of one rank without clipping.
plan::PlanInputs plan_inputs_of(const model::ModelConfig& config, kernels::Device& device,
                                DType compute);

/// A parameter's values as forward reads them, widened to f32.
std::vector<float> widened(const View& v);

}  // namespace tessera::test
