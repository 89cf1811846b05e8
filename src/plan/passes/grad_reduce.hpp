// How gradients of micro-batches and ranks become one.
#pragma once

#include "plan/passes/schedule.hpp"

namespace tessera::plan {

/// A unit's gradient, summed, in the type that gradients are accumulated in.
struct SummedGradient {
  View slice;  // (shard) this rank's
  View owned;  // (owned) what it updates with
};

/// Sums each unit's gradient over data ranks as soon as it is complete, and over both ends where a
/// tied matrix has two; zero-fills what no operation writes. Returns the sums, by unit.
std::vector<SummedGradient> grad_reduce(Plan& plan, const PlanInputs& inputs,
                                        const std::vector<UnitState>& states,
                                        const Scheduled& scheduled);

}  // namespace tessera::plan
