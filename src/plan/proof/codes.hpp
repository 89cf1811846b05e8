// Products that multiply codes of frozen matrices.
#pragma once

#include "plan/proof/homes.hpp"

namespace tessera::plan {

/// Their codes and scales are of the same elements of a unit that is kept so, in whole blocks,
/// wherever they have come to. Throws InternalError.
void check_codes(const Plan& plan, const Homes& homes);

}  // namespace tessera::plan
