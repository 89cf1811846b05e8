// Gradients of micro-batches and data ranks become one sum. There is no all-reduce: ZeRO stage 0
// too reduce-scatters into the rank's own slice, then gathers all slices. That sends the same
// bytes, and at every stage the norm is summed over slices.
#pragma once

#include "plan/passes/momentum.hpp"
#include "plan/passes/schedule.hpp"

namespace tessera::plan {

/// A unit's gradient, summed, in the type that gradients are accumulated in.
struct SummedGradient {
  View slice;  // (shard) of this rank's shard: what enters the norm
  View owned;  // (owned) of all elements that this rank updates
  View lost;   // (padded) bf16, with error feedback: by this step's roundings
  /// Of momentum that travels: its mean. The gradient is then what has led there, and is of the
  /// shard alone.
  MeanOnItsWay momentum;
};

/// Sums each unit's gradient over data ranks as soon as it is complete, or has the ranks' momentum
/// travel in its place, and that of a tied matrix over both ends of the pipeline. Zero-fills
/// elements that no operation writes. Returns the sums, by unit.
std::vector<SummedGradient> grad_reduce(Plan& plan, const PlanInputs& inputs,
                                        const std::vector<UnitState>& states,
                                        const Scheduled& scheduled);

}  // namespace tessera::plan
