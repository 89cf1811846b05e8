// The ops of a plan as they run: of a long step the plan has a few micro-batches, and says which of
// their ops run again for those that follow.
#pragma once

#include "plan/ir/plan.hpp"

namespace tessera::plan {

/// How many ops a step runs, those that run again counted each time. They are numbered in the order
/// in which they are issued.
std::int64_t runs_of(const Plan& plan);
/// How often an op runs in a step.
std::int64_t times_of(const Plan& plan, OpId op);

/// Whether an op of the first copy of what repeats is there again in the second: the same work at
/// the same addresses for a later micro-batch, which waits for what stands as far before it, and
/// for nothing before the first copy. Then so it is in every further run: whatever two neighbouring
/// runs do in order, all do, because a run of an op follows the one before it on its stream.
bool repeats(const Plan& plan, const Repeat& repeat, OpId op);

/// One run of an op.
struct OpRun {
  OpId op = 0;
  /// How often the part that runs again has run before; times - 1 of ops that stand behind it.
  std::int64_t before = 0;
};
OpRun run_at(const Plan& plan, std::int64_t number);
std::int64_t number_of(const Plan& plan, const OpRun& run);

/// Whether a run that waits for this op means its run after as many others (OpRun::before), not its
/// first.
inline bool counts_with_runs(const Plan& plan, OpId op) {
  return plan.repeat && op >= plan.repeat->first;
}
/// Which run is meant where a run waits for an op.
std::int64_t awaited(const Plan& plan, const OpRun& run, OpId op);

/// The micro-batch that a run is about; -1: none.
std::int32_t micro_batch_of(const Plan& plan, const OpRun& run);

/// The same step with an op for each run, and buffers of its own for each time that a part runs; at
/// the places of those that the plan has.
Plan unrolled(Plan plan);

}  // namespace tessera::plan
