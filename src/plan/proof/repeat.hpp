// Proves of a plan whose micro-batches repeat that every further run does what the proven ones do.
#pragma once

#include "plan/ir/plan.hpp"

namespace tessera::plan {

/// Every op of what repeats is there twice (repeats), and with its runs each micro-batch of the
/// step is taken once, in their
/// order. Throws InternalError.
void check_repeat(const Plan& plan);

}  // namespace tessera::plan
