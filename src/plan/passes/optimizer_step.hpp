// The end of a step: norm, verdict, updates.
#pragma once

#include "plan/passes/grad_reduce.hpp"

namespace tessera::plan {

/// Adds the norm, the verdict and the updates, and, where the shape asks for it, snapshots of the
/// state as the step before left it.
void optimizer_step(Plan& plan, const PlanInputs& inputs, const std::vector<UnitState>& states,
                    const std::vector<SummedGradient>& gradients);

}  // namespace tessera::plan
