// Runs a plan on the CPU: kernels on the calling thread, everything else on background streams.
#pragma once

#include <chrono>
#include <functional>

#include "comm/group.hpp"
#include "memory/streams.hpp"
#include "plan/make_plan.hpp"
#include "plan/simulate.hpp"
#include "train/whereabouts.hpp"

namespace tessera::train {

/// Where the bytes of a plan's two arenas are.
struct PlanMemory {
  std::byte* state = nullptr;
  std::byte* step = nullptr;
};

/// Bytes of each.
struct ArenaBytes {
  std::int64_t state = 0, step = 0;
};

/// A plan whose symbolic addresses have become real ones and whose waits have become events.
class BoundPlan {
 public:
  BoundPlan(const plan::Plan& plan, const PlanMemory& memory);

  struct BoundOp {
    const plan::Op* op = nullptr;
    plan::Call call;                   // with real addresses
    std::vector<memory::Event> waits;  // counts within the step
  };
  const plan::Plan& plan() const { return plan_; }
  const std::vector<BoundOp>& ops() const { return ops_; }
  /// A view into the plan's buffers as one into memory.
  View real(const View& symbolic) const;
  /// The end of what operations use of each arena.
  const ArenaBytes& reach() const { return reach_; }

 private:
  const plan::Plan& plan_;
  PlanMemory memory_;
  std::vector<BoundOp> ops_;
  ArenaBytes reach_;
};

/// Where the time of one or more steps went, in seconds of the calling thread.
struct StepTimes {
  double total = 0;
  std::vector<double> compute;  // entry 0: what belongs to no unit; u + 1: unit u
  double comm_exposed = 0;      // waiting for gathers, reductions and messages
  double pipeline_exposed = 0;  // of it, waiting for other stages: the bubble and the messages
  double copy_exposed = 0;      // waiting for snapshots
  double data_exposed = 0;      // waiting for tokens
  void add(const StepTimes& other);
};

/// When each op of a step ran on this rank, seconds since the step's begin: an op of the background
/// from its start, its waits over, until it was found complete; one of the calling thread while it
/// ran.
struct StepProfile {
  std::chrono::steady_clock::time_point begin;
  double seconds = 0;  // the whole step
  std::vector<plan::OpTime> ops;
};

/// The groups that a rank is in, the data group once for each stream: collectives of different
/// streams are under way at the same time and must not take each other's messages. Messages down
/// the pipeline and up again are apart for the same reason.
struct Groups {
  std::unique_ptr<comm::Group> world, gather, reduce, tensor, forward, backward, ends;

  comm::Group& of(const plan::Op& op) const;
};
/// Those of a job of one rank.
Groups self_groups();

class Executor {
 public:
  /// Provides micro-batch `micro_batch` of the step into `views`.
  using Loader = std::function<void(std::int64_t micro_batch, const plan::LoadBatch& views)>;

  /// `inputs` of the plans that it will run: names for messages. `whereabouts` is told of each op.
  Executor(kernels::Device& device, Groups& groups, memory::Streams& streams,
           const plan::PlanInputs& inputs, Whereabouts& whereabouts)
      : device_(device),
        groups_(groups),
        streams_(streams),
        inputs_(inputs),
        whereabouts_(whereabouts) {}

  /// Called on the calling thread for each op of its own stream, and before ops are handed to the
  /// background.
  struct Hooks {
    std::function<void(const BoundPlan::BoundOp&)> before, after;
  };

  /// One step; returns when all of it is done. Rethrows what an op threw, in the background or not,
  /// with the op's name in front. Fills `profile` if there is one.
  StepTimes run(const BoundPlan& bound, const Loader& load, const Hooks& hooks = {},
                StepProfile* profile = nullptr);

 private:
  class BackgroundOp;
  /// Starts the work of a background op.
  std::unique_ptr<memory::Task> start(const plan::Op& op, const plan::Call& call);

  kernels::Device& device_;
  Groups& groups_;
  memory::Streams& streams_;
  const plan::PlanInputs& inputs_;
  Whereabouts& whereabouts_;
};

}  // namespace tessera::train
