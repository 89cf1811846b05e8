// Groups over MPI: the collectives of transport_group over MPI's messages.
#pragma once

#include <memory>
#include <span>

#include "comm/group.hpp"

namespace tessera::comm {

/// The ranks of `members` (world ranks; this one among them) as a group with a communicator of its
/// own. Every rank of the world must call this in the same order, or creating communicators
/// deadlocks; groups of one call must not overlap. A rank that is in no group gives no members and
/// gets nullptr.
std::unique_ptr<Group> make_mpi_group(std::span<const int> members, const GroupShape& shape);

}  // namespace tessera::comm
