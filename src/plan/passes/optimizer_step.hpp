// The end of a step: norm, verdict, updates.
#pragma once

#include "plan/passes/grad_reduce.hpp"

namespace tessera::plan {

/// Norm, verdict, updates; snapshots of the state of the step before.
void optimizer_step(Plan& plan, const PlanInputs& inputs, const std::vector<UnitState>& states,
                    const std::vector<SummedGradient>& gradients);

}  // namespace tessera::plan
