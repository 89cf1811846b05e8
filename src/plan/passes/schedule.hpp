// Forward and backward of every micro-batch: recordings are bound to buffers of the plan, in the
// order of the pipeline schedule.
#pragma once

#include <vector>

#include "plan/passes/state.hpp"

namespace tessera::plan {

/// A gradient buffer: what the backward of one use of a unit fills, in one micro-batch or over the
/// whole step.
struct GradientBuffer {
  BufferId buffer = -1;
  std::size_t unit = 0;
  bool head_use =
      false;  // of a tied matrix whose two gradients are summed separately (tied_uses_separate)
};

/// What the pass tells later ones.
struct Scheduled {
  /// By unit: where parameters are brought into windows, the placeholder buffer that its ops read,
  /// which residency() replaces by them; -1 elsewhere.
  std::vector<BufferId> windows;
  std::vector<GradientBuffer> gradients;  // of trained units, in the order of micro-batches
  std::vector<LoadBatch> batches;         // by scheduled micro-batch, what its ops read
  std::vector<LoadBatch> loaded;          // by micro-batch; ops that fill them are added later
};

/// Adds the ops of forward and backward of every micro-batch, the messages between stages, and the
/// sums of losses.
Scheduled schedule(Plan& plan, const PlanInputs& inputs, const std::vector<UnitState>& states);

}  // namespace tessera::plan
