// What a communicator of NCCL may take of a GPU.
#pragma once

#include <optional>

#include "comm/group.hpp"

namespace tessera::comm {

/// The most thread blocks that a communicator's kernels may have (NCCL's maxCTAs): each of them
/// takes a multiprocessor from the kernels that compute beside it, and each adds a channel with
/// buffers of its own. Nothing: as many as NCCL finds best.
///   messages: they have the time of a micro-batch's kernels to pass; NCCL itself takes two
///     channels for a peer across a network, four leave room for the faster links within a node
///   words: hundreds of bytes need no second block (where they share no group of bulk data)
std::optional<int> most_blocks(Traffic traffic);

/// Whether a communicator prefers what takes few thread blocks to what is fastest by itself (NCCL's
/// NCCL_CTA_POLICY_EFFICIENCY, from version 2.27 on): collectives of replicas, which pass beside
/// kernels. Within NVLink's switches gathers of registered memory then take the few blocks that
/// such a switch needs, where rings take one a channel; elsewhere, and of sums that are sent and
/// added by us, nothing changes. How many these are, NCCL knows.
bool is_sparing(Traffic traffic);

}  // namespace tessera::comm
