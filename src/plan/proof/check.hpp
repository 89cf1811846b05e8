// Proves a plan, independently of how it was made: a plan that passes cannot race, read what nobody
// wrote, or leave a gradient out. Throws InternalError naming the op, because a broken plan is a
// bug, not a user's mistake.
#pragma once

#include <span>

#include "plan/ir/plan.hpp"

namespace tessera::plan {

/// One rank's plan: buffers inside their arenas; live buffers do not overlap; every read was
/// written before; no op uses bytes that an op it has not awaited writes; collectives' sizes fit
/// the group; every gradient element is reduced once a micro-batch or once a step, enters the norm
/// once and updates once, after the verdict.
void check(const Plan& plan);

/// The plans of several ranks of a group, by their plan_hash: the same collectives in the same
/// order.
void check_together(std::span<const std::uint64_t> plan_hashes);

}  // namespace tessera::plan
