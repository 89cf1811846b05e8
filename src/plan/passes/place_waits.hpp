// Which op waits for which: ops that touch the same bytes, at least one writing, keep their order.
#pragma once

#include "plan/ir/plan.hpp"

namespace tessera::plan {

/// The fewest waits that keep every pair of conflicting ops on different streams in order.
void place_waits(Plan& plan);

}  // namespace tessera::plan
