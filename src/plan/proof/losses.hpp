// The proof of the losses, and choices of experts, that a step shows.
#pragma once

#include "plan/proof/homes.hpp"

namespace tessera::plan {

/// Every loss that the head makes is added to the step's sum once, and with its sample's others to
/// the tally that the host has loaded for that sample, before ranks add up their words; the words
/// begin at 0. What a router chooses is counted once, in the row of its layer, and not again where
/// it is computed again; what balances experts does so by these counts of all ranks. Where tensor
/// ranks have the same losses and choices the first of them adds, and no other. Throws
/// InternalError.
void check_losses(const Plan& plan, const Homes& homes);

}  // namespace tessera::plan
