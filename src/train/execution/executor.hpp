// Runs a plan: hands its ops, in plan order, to the streams of a back end.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>

#include "comm/group.hpp"
#include "memory/tier.hpp"
#include "plan/ir/channels.hpp"
#include "plan/ir/runs.hpp"
#include "plan/passes/make_plan.hpp"
#include "plan/prediction/simulate.hpp"
#include "streams/streams.hpp"
#include "train/execution/whereabouts.hpp"
#include "train/loss_sum.hpp"
#include "train/preferences.hpp"

namespace tessera::train {

/// Where the bytes of a plan's arenas are, by plan::ArenaId.
using PlanMemory = plan::PerArena<std::byte*>;
/// The memory of each location; nullptr where plans have nothing there.
using Tiers = plan::PerLocation<memory::Tier*>;

/// A plan with real addresses in place of symbolic ones, and events in place of waits.
class BoundPlan {
 public:
  BoundPlan(const plan::Plan& plan, const PlanMemory& memory);

  struct BoundOp {
    const plan::Op* op = nullptr;
    plan::Call call;                                  // with real addresses
    plan::Location carrier = plan::Location::device;  // of a copy: the tier that carries it out
    bool by_host = false;                             // not by the device
    std::vector<streams::Event> waits;                // counts within the step, of a first run
    std::size_t moving = 0;  // the first waits: in later runs those count later runs
  };
  const plan::Plan& plan() const { return plan_; }
  const std::vector<BoundOp>& ops() const { return ops_; }
  /// What an op waits for where the part that runs again has come so often before: as
  /// plan::awaited says it of runs, in counts.
  std::vector<streams::Event> waits_of(plan::OpId op, std::int64_t before) const;
  /// Turns a view of the plan's buffers into one of memory.
  View real(const View& symbolic) const;
  /// How far into each arena the operations reach, in bytes.
  const plan::ArenaBytes& reach() const { return reach_; }
  /// Whether all is the device's own work.
  bool of_device() const { return of_device_; }

 private:
  const plan::Plan& plan_;
  PlanMemory memory_;
  std::vector<BoundOp> ops_;
  plan::ArenaBytes reach_{};
  std::array<std::int64_t, kStreams> repeated_{};  // ops of what repeats, by stream
  bool of_device_ = true;
};

/// Where the time of one or more steps went, in seconds of the compute stream. The executor knows
/// nothing of what is between its steps.
struct StepTimes {
  double total = 0;
  std::vector<double> compute;  // entry 0: ops of no unit; entry u + 1: ops of unit u
  double comm_exposed = 0;      // waiting for gathers, reductions and messages
  double pipeline_exposed = 0;  // of it, waiting for other stages: the bubble and the messages
  double copy_exposed = 0;      // waiting for what is offloaded, and for snapshots
  double save_exposed = 0;      // of it, for snapshots
  double data_exposed = 0;      // waiting for tokens
  double between = 0;           // since the end of the step before, in nothing of the above
  double for_others = 0;        // of it, waiting for other ranks
  /// What the rank took by itself, not waiting for others.
  double own() const { return std::max(0.0, total - comm_exposed - for_others); }
  double computed() const { return std::accumulate(compute.begin(), compute.end(), 0.0); }
  void add(const StepTimes& other);
};

/// What the host gives a step, and what the step gives back.
struct StepInput {
  optim::StepScalars scalars{};
  std::array<std::int64_t, plan::WordLayout::flag_count> flags{};
  // Of this rank that count, all and by tally; each is counted by one rank.
  std::int64_t targets = 0;
  std::vector<std::int64_t> tally_targets;

  float& operator[](kernels::StepScalar which) { return scalars[static_cast<std::size_t>(which)]; }
  void set(plan::StepFlag flag, bool value) { flags[static_cast<std::size_t>(flag)] = value; }
};
struct StepOutput {
  StepTimes times;
  std::vector<std::int64_t> words;       // summed over all ranks
  std::int64_t tallies = 0;              // that the step has
  std::vector<std::int64_t> confusion;   // row by row, each document once
  std::vector<std::int64_t> choices;     // as Plan::choices
  std::vector<std::int64_t> statistics;  // as Plan::statistics
  bool applied = false;                  // the verdict, of training

  double sum(std::int64_t first_word) const {
    return exact_value(ConstExactWords(words.data() + first_word, kExactSumWords));
  }
  /// Where samples are pairs, what is said of them; else zeros.
  PreferenceSums preferences() const {
    PreferenceSums sums;
    if (!statistics.empty()) sums.assign(statistics);
    sums.pairs = losses().targets;
    return sums;
  }
  /// Where targets were drawn by the model, which has been updated since, the mean of one of the
  /// kPolicyStats.
  double policy(std::int64_t statistic) const {
    const auto first = statistics.begin() + statistic * kExactSumWords;
    return exact_value(ConstExactWords(&*first, kExactSumWords)) /
           static_cast<double>(losses().targets);
  }
  /// Of all targets of all ranks, and of those of a tally.
  LossSum losses() const { return losses_at(plan::WordLayout::loss, plan::WordLayout::targets); }
  LossSum losses_of(std::int64_t tally) const {
    return losses_at(plan::WordLayout::tally_sums(tallies) + tally * kExactSumWords,
                     plan::WordLayout::tally_targets + tally);
  }
  /// How many targets of all ranks count, for means over them: at least 1.
  std::int64_t targets() const {
    return std::max<std::int64_t>(1, words[plan::WordLayout::targets]);
  }
  /// How many ranks have set the flag.
  std::int64_t count(plan::StepFlag flag) const {
    return words[plan::WordLayout::flags + static_cast<std::size_t>(flag)];
  }

 private:
  LossSum losses_at(std::int64_t sum, std::int64_t targets) const {
    LossSum losses{.targets = at(words, targets)};
    std::copy_n(words.begin() + sum, kExactSumWords, losses.words.begin());
    return losses;
  }
};

/// When each op of a step ran on this rank, in seconds since the step's begin. An op beside compute
/// runs from its start, after its waits, until it was found complete.
struct StepProfile {
  std::chrono::steady_clock::time_point begin;
  double seconds = 0;  // the whole step
  std::vector<plan::OpTime> ops;
};

/// The groups that a rank is in, by channel; nullptr where it is in none.
class Groups {
 public:
  std::shared_ptr<comm::Group>& operator[](plan::Channel channel) {
    return groups_[static_cast<std::size_t>(channel)];
  }
  comm::Group& of(const plan::Op& op) const;

 private:
  std::array<std::shared_ptr<comm::Group>, plan::kChannels> groups_;
};
/// The groups of a job of one rank.
Groups self_groups();

/// Makes the group of `members`, this rank among them; nothing if there are no members.
using MakeGroup = std::function<std::unique_ptr<comm::Group>(
    std::span<const int> members, const comm::GroupShape& shape, comm::Traffic traffic)>;
/// The groups of rank `rank`: one for each channel that has several ranks, but channels of the same
/// ranks and the same streams share one. Collective over all ranks of the job, as `make` may be.
Groups make_groups(const plan::PlanInputs& inputs, std::int64_t rank, const MakeGroup& make);

class Executor {
 public:
  /// Begins a kernel beside compute.
  using StartKernel =
      std::function<std::unique_ptr<streams::Task>(const kernels::KernelCall& call)>;
  /// By where it runs: on the device, or on the host.
  struct StartKernels {
    StartKernel on_device, on_host;
  };
  /// Provides micro-batch `micro_batch` of the step into `views`, which are host memory.
  using Loader = std::function<void(std::int64_t micro_batch, const plan::LoadBatch& views)>;

  /// `beside` starts kernels of streams beside compute; `tiers` are where the plans' buffers are;
  /// `inputs` those of the plans that it will run: names for messages. `whereabouts` is told of
  /// each op.
  Executor(kernels::Device& device, StartKernels beside, const Tiers& tiers, Groups& groups,
           streams::Streams& streams, const plan::PlanInputs& inputs, Whereabouts& whereabouts)
      : device_(device),
        beside_(std::move(beside)),
        tiers_(tiers),
        tier_(*tiers[plan::Location::device]),
        groups_(groups),
        streams_(streams),
        inputs_(inputs),
        whereabouts_(whereabouts) {}

  /// Begins to write a tile, in real memory, into the checkpoint.
  using SaveTile =
      std::function<std::unique_ptr<streams::Task>(const plan::Op& op, const plan::SaveTile& tile)>;
  /// Called before each op, when what it waits for has come, and after each op of the compute
  /// stream; and for the tiles that a plan saves. On a GPU that keeps the order itself both are
  /// calls around the queueing, and bytes are there for who reads them through its tier, which
  /// waits for them. What the host begins beside compute is announced by the thread that begins it,
  /// until run() has returned or, where that has thrown, until the streams are gone: a hook holds
  /// no lock while it waits for a device.
  struct Hooks {
    std::function<void(const BoundPlan::BoundOp&, const plan::OpRun&)> before, after;
    SaveTile save;
  };

  /// One step; returns when all of it is done. Rethrows what an op threw, in the background or not,
  /// with the op's name in front. Fills `profile` if there is one.
  StepOutput run(const BoundPlan& bound, const StepInput& input, const Loader& load,
                 const Hooks& hooks = {}, StepProfile* profile = nullptr);

 private:
  class Named;
  /// Starts the work of an op beside compute.
  std::unique_ptr<streams::Task> start(const BoundPlan::BoundOp& bound);
  /// `said`: how often the part that runs again was said to the streams before.
  void issue(const BoundPlan& bound, const plan::OpRun& run, std::int64_t said,
             Whereabouts::Running& running);
  void write(const BoundPlan& bound, const StepInput& input);
  void read(const BoundPlan& bound, StepOutput& output);
  /// When each load_batch ran, seconds since `begin`.
  std::vector<streams::Stretch> load_all(const BoundPlan& bound, const Loader& load,
                                         std::chrono::steady_clock::time_point begin);
  void issue(const BoundPlan& bound, Whereabouts::Running& running);

  kernels::Device& device_;
  StartKernels beside_;
  Tiers tiers_;
  memory::Tier& tier_;  // of the device
  Groups& groups_;
  streams::Streams& streams_;
  const plan::PlanInputs& inputs_;
  Whereabouts& whereabouts_;
  Hooks hooks_;  // of the step under way
};

}  // namespace tessera::train
