// Which op waits for which: ops that touch the same bytes, at least one of them writing, keep the
// order that they have in the plan. Waits are derived after placement, from physical bytes: so the
// next buffer in the same bytes is ordered behind the last one by the rule that orders producers
// and consumers, and bytes that are not used again cost no wait.
#pragma once

#include "plan/ir/plan.hpp"

namespace tessera::plan {

/// Sets Op::waits. An op waits for a conflicting earlier op of another stream only if that is not
/// implied by its own stream's order and the waits before it.
void place_waits(Plan& plan);

}  // namespace tessera::plan
