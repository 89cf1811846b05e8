// When a unit's parameters are whole on a rank.
#pragma once

#include "plan/passes/schedule.hpp"

namespace tessera::plan {

/// ZeRO-3: gathers `prefetch` visits ahead of first use, into windows that die with the last use of
/// a run of uses. ZeRO-1, 2: publishes of the shards that the last step updated, in the order of
/// first use.
void residency(Plan& plan, const PlanInputs& inputs, const std::vector<UnitState>& states,
               const Scheduled& scheduled);

}  // namespace tessera::plan
