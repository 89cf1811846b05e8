// When the parameters of a unit are complete on a rank, although data ranks keep shards of them.
// There is no op that releases a window: it ends with its buffer's life, and check() proves that
// no other buffer overwrites it before that.
#pragma once

#include "plan/passes/schedule.hpp"

namespace tessera::plan {

/// ZeRO-3: gathers a unit `prefetch` visits before its first use into a window of its own. Uses
/// that follow closely share one window, whose life ends with the last of them. ZeRO-1 and 2: at
/// the begin of a step, publishes the shards that the last step updated, in the order of first use.
void residency(Plan& plan, const PlanInputs& inputs, const std::vector<UnitState>& states,
               const Scheduled& scheduled);

}  // namespace tessera::plan
