// The order of forward and backward over micro-batches and layers, and the binding of recordings to
// buffers.
#pragma once

#include <vector>

#include "plan/passes/state.hpp"

namespace tessera::plan {

/// What one use of a unit fills in one micro-batch, or in the whole step.
struct GradientBuffer {
  BufferId buffer = -1;
  std::size_t unit = 0;
  bool head_use = false;  // of a tied matrix, where it is summed apart from the embedding's
};

/// What later passes are told.
struct Scheduled {
  /// By unit: the placeholder that its parameters are read from where they are in shards; or -1.
  std::vector<BufferId> windows;
  std::vector<GradientBuffer> gradients;  // in the order of micro-batches
  std::vector<LoadBatch> batches;         // by micro-batch; nothing fills them yet
};

/// Forward and backward of every micro-batch, layer by layer, from recordings, in the order of the
/// pipeline; messages between stages and loss sums.
Scheduled schedule(Plan& plan, const PlanInputs& inputs, const std::vector<UnitState>& states);

}  // namespace tessera::plan
