// Proves that a plan of generation puts what is made of tokens into caches before anything is made
// of it, and makes the logits that the host reads.
#pragma once

#include "plan/ir/plan.hpp"

namespace tessera::plan {

/// Throws InternalError. Of each micro-batch what attention reads of a cache is behind what the
/// same layer has put there, once, by the same table; and each row of logits is made, once.
void check_generation(const Plan& plan);

}  // namespace tessera::plan
