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

}  // namespace tessera::comm
