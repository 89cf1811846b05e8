// A rank's plans and everything that runs them: back end, groups, memory, model state, streams.
// Training and evaluation each own one.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.hpp"
#include "data/batches.hpp"
#include "deck/load.hpp"
#include "memory/arena.hpp"
#include "memory/disk_tier.hpp"
#include "plan/prediction/ledger.hpp"
#include "setup/inputs.hpp"
#include "train/execution/executor.hpp"
#include "train/job.hpp"
#include "train/start_times.hpp"
#include "train/state/model_state.hpp"

namespace tessera::train {

/// A plan, ready to run.
struct PreparedPlan {
  BoundPlan bound;
  comm::WireBytes wire;  // the most that any rank sends

  const plan::Plan& plan() const { return bound.plan(); }
};

/// What a rank of a run computes on, and with how many threads. Collective.
struct Hardware {
  /// `few_rows`: as backend::Settings has it, for generation.
  Hardware(const deck::Deck& deck, const Job& job, bool few_rows = false);
  int threads = 1;
  backend::Backend backend;
};
setup::ComputesOn computes_on(const backend::Backend& backend);

class Engine {
 public:
  /// Makes the plans of `shapes`, proves that those of all ranks fit together, and makes memory
  /// that serves each; the state holds what these plans need, uninitialised. Collective over all
  /// ranks, with the same shapes. Throws MemoryError where they do not fit, CommError if ranks made
  /// different plans, on every rank.
  Engine(const deck::LoadedDeck& loaded, const Job& job, std::span<const plan::PlanShape> shapes)
      : Engine(loaded, job, shapes, Hardware(loaded.deck, job)) {}
  Engine(const deck::LoadedDeck& loaded, const Job& job, std::span<const plan::PlanShape> shapes,
         Hardware hardware);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Chooses how matrix products and attention are computed, or takes over what an earlier start of
  /// the run in `directory` has chosen. `timed`: chooses the fastest way and writes it there,
  /// unless layout mode promises the same bits everywhere. `say` tells people what was chosen.
  /// Overwrites the step's arena. Collective.
  void tune(const std::filesystem::path& directory, bool timed,
            const std::function<void(const std::string&)>& say);

  /// What making it took.
  const StartTimes& start_times() const { return start_times_; }
  /// Seconds that the device has taken so far to record steps that it repeats.
  double recording_seconds() const { return streams_->recording_seconds(); }
  const plan::PlanInputs& inputs() const { return inputs_; }
  const MeshPlace& place() const { return place_; }
  std::int64_t batch_ranks() const { return inputs_.layout.mesh.batch_ranks(); }
  int threads() const { return threads_; }
  /// What the ranks compute on, and the highest rate in flop/s that matrix products of the compute
  /// type reach there; 0 where that is not known.
  const std::string& device_name() const { return backend_.name; }
  /// What people should know of how ranks talk, a line each.
  std::vector<std::string> notes() const {
    return backend_.notes ? backend_.notes() : std::vector<std::string>();
  }
  double peak_rate() const;
  /// The state, with what the last step has left to do. Collective.
  ModelState& state() {
    settle();
    return *state_;
  }
  /// The state as it is, perhaps without that update: its layout, and snapshots of it.
  const ModelState& unsettled_state() const { return *state_; }

  /// Checkpoints of this engine's state have that of another model beside it (ModelState), and
  /// state() is that of both.
  void take_along(Engine& other, std::string prefix) {
    state_->take_along(*other.state_, std::move(prefix));
    beside_ = &other;
  }
  const Engine* beside() const { return beside_; }

  /// The plan of one of the shapes. The last few that were asked for are kept, others made again.
  const PreparedPlan& prepared(const plan::PlanShape& shape) const;
  /// This rank's part of a step of this shape.
  data::BatchShare share(const plan::PlanShape& shape) const;
  /// Whether this rank counts the targets of its part of a step: of ranks that have the same one
  /// does.
  bool counts_targets() const { return place_.tensor == 0 && place_.pipeline == 0; }
  /// Runs the plan over this rank's part of a step, whose targets it counts.
  StepOutput run(const PreparedPlan& prepared, StepInput input, const data::StepTokens& tokens,
                 const Executor::Hooks& hooks = {}, StepProfile* profile = nullptr);
  /// Runs a plan of generation; `load` fills what it reads of each of its micro-batches. `logits`
  /// become those after each sample's last token, (samples, outputs).
  void generate(const PreparedPlan& prepared, const Executor::Loader& load,
                std::vector<float>& logits);
  /// Runs a plan of evaluation that has scores, and returns those of the targets of `tokens`, in
  /// their order; nothing on a rank that another one speaks for.
  std::span<const float> score(const PreparedPlan& prepared, const data::StepTokens& tokens);
  /// The memory of the device.
  memory::Tier& tier() { return *backend_.device_tier; }
  /// Where the plans' buffers are.
  Tiers tiers() const {
    return {{backend_.device_tier.get(), backend_.host_tier.get(), disk_tier_.get()}};
  }
  /// The disks of what lives there; nullptr where nothing does.
  const memory::DiskTier* disks() const { return disk_tier_.get(); }

  const plan::Ledger& ledger() const { return needs_.ledger; }
  /// On rank 0, how many meetings of pipeline stages the plans of all shapes have; all were proved
  /// to fit.
  std::int64_t meetings() const { return needs_.meetings; }
  /// Of this rank's arenas: their sizes, and how far into them the operations that ran have
  /// reached.
  plan::ArenaBytes arenas() const;
  const plan::ArenaBytes& high_water() const { return high_water_; }
  /// By pipeline stage, the `own` of the rank whose arenas are the largest in all. Collective.
  std::vector<plan::ArenaBytes> of_largest_ranks(const plan::ArenaBytes& own) const;
  /// Bytes of all arenas in memory, and of those where the rank computes: on a CPU, all of them.
  std::int64_t bytes() const;
  std::int64_t device_bytes() const;
  /// How much more of the GPU is in use than before groups were made, arenas not counted: what
  /// libraries and graphs have taken, if no other process came or went. 0 on a CPU.
  std::int64_t library_bytes() const;
  /// How much more memory is in use than before the arenas were made, on the host and the device.
  std::int64_t memory_growth() const { return memory_in_use() - in_use_before_; }
  /// What the process had in the host's memory before the arenas were made: libraries, code,
  /// tokens.
  std::int64_t resident_before() const { return resident_before_; }

 private:
  void settle();
  std::int64_t memory_in_use() const;
  void make_plans(std::span<const plan::PlanShape> shapes);
  void start_host_team();
  void allocate(const comm::MpiSession& mpi);
  void keep(const plan::PlanShape& shape) const;

  const deck::LoadedDeck& loaded_;
  const comm::Control& control_;
  int threads_ = 1;
  backend::Backend backend_;
  plan::PlanInputs inputs_;
  MeshPlace place_;
  /// What is known of the plans of all shapes.
  struct Needs {
    plan::Ledger ledger;
    std::int64_t meetings = 0;
    bool host_work = false;                           // of some plan
    std::map<plan::PlanShape, comm::WireBytes> wire;  // the most that any rank sends
  };
  Needs needs_;
  mutable std::map<plan::PlanShape, plan::Plan> plans_;       // that are kept
  mutable std::map<plan::PlanShape, PreparedPlan> prepared_;  // of these, once they have memory
  mutable std::vector<plan::PlanShape> kept_;                 // the last that was asked for last
  std::size_t most_kept_ = 0;                                 // so many of them
  std::unique_ptr<memory::DiskTier> disk_tier_;               // absent where nothing is on disks
  Arenas arenas_;
  std::int64_t in_use_before_ = 0, resident_before_ = 0;
  StartTimes start_times_;
  std::int64_t device_memory_before_ = 0;  // in use on a GPU before groups were made
  plan::ArenaBytes high_water_{};
  std::vector<float> parts_of_logits_;  // of a pass, as its plan has them
  std::vector<float> scores_;
  std::optional<ModelState> state_;
  std::optional<plan::PlanShape> work_left_;  // by the last step: what does it
  Engine* beside_ = nullptr;
  Groups groups_;  // they may know the arenas' memory: they end before it
  std::optional<Executor> executor_;
  std::unique_ptr<streams::Streams> streams_;  // last: its threads use the others
};

}  // namespace tessera::train
