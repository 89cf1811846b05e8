// What is copied of experts that have rows is read of these experts.
#pragma once

#include "plan/ir/plan.hpp"

namespace tessera::plan {

/// Of a Copy with `begins` some of the bytes are not there: a product that has the same rows, and
/// exactly these matrices, is the only one who may read them, and they do not outlive the step.
/// Throws InternalError.
void check_on_demand(const Plan& plan);

}  // namespace tessera::plan
