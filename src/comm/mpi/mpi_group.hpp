// Groups over MPI: the collectives of transport_group over MPI's messages.
#pragma once

#include <memory>
#include <span>

#include "comm/group.hpp"

namespace tessera::comm {

/// The ranks of `members` (world ranks; this one among them) as a group with a communicator of its
/// own. Every rank of the world must call this in the same order (trap 2), with groups that do not
/// overlap; who has none gives no members and gets nullptr.
std::unique_ptr<Group> make_mpi_group(std::span<const int> members, const GroupShape& shape);

}  // namespace tessera::comm
