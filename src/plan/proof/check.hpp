// Proves one rank's plan from the finished plan alone, without knowing how it was made. A plan that
// passes has no race, reads nothing that nobody wrote, and leaves no gradient out. Throws
// InternalError naming the op, because a broken plan is a bug, not a user's mistake.
#pragma once

#include <span>

#include "plan/ir/plan.hpp"

namespace tessera::plan {

/// One rank's plan: buffers lie inside their arenas; no buffer overwrites one that is still read;
/// every read was written before; conflicting ops are ordered by streams and waits; collectives'
/// sizes fit their group; every gradient element is reduced once a micro-batch or once a step,
/// enters the norm once, and updates a weight once, after the verdict; the host loads tokens first,
/// and does nothing else.
void check(const Plan& plan);

/// By the plan_hash of several ranks of a data group: they issue the same collectives in the same
/// order.
void check_together(std::span<const std::uint64_t> plan_hashes);

}  // namespace tessera::plan
