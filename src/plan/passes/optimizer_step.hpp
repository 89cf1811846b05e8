// The end of a step: norm, verdict, updates.
#pragma once

#include "plan/passes/grad_reduce.hpp"

namespace tessera::plan {

/// Adds the norm, the verdict and the updates, and, where the shape asks for it, snapshots of the
/// state as the step before left it. Where updates use what lives elsewhere they are those of the
/// step before, each unit's beside the forward of the layers before it, and the plan keeps what the
/// next one needs for its own.
void optimizer_step(Plan& plan, const PlanInputs& inputs, const std::vector<UnitState>& states,
                    const std::vector<SummedGradient>& gradients);

/// Adds the updates that a step has left to the next one, and that nothing is left after them.
void flush(Plan& plan, const PlanInputs& inputs, const std::vector<UnitState>& states);

}  // namespace tessera::plan
