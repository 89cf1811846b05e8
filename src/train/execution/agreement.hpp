// Proves, before anything runs, that the plans that ranks have made for themselves fit together:
// ranks with plans that do not fit would wait for each other for ever.
#pragma once

#include <map>

#include "comm/mpi/control.hpp"
#include "plan/passes/make_plan.hpp"

namespace tessera::train {

using Plans = std::map<plan::PlanShape, plan::Plan>;

inline constexpr const char* kDifferentPlans =
    "ranks made different plans: they must run one binary with one deck";

/// Throws, on every rank, CommError where the ranks of a data group would not issue the same
/// collectives, and InternalError where the stages of a pipeline do not fit. Pipelines whose stages
/// have the same meetings are proved once, on rank 0, from what their ranks send: a few dozen bytes
/// for each message of a step. Returns, on rank 0, how many meetings were proved. Collective.
std::int64_t prove_together(const Plans& plans, const plan::PlanInputs& inputs,
                            const comm::Control& control);

}  // namespace tessera::train
