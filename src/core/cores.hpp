// The processor cores that processes of one node may run on, and how many each can have.
#pragma once

#include <bitset>
#include <span>

namespace tessera {

/// Bit c: whether core c of the node may be used.
using CoreMask = std::bitset<4096>;

/// What the launcher left to this process (its affinity mask).
CoreMask own_cores();

/// Cores for each of the node's processes with these masks: every core is divided evenly among the
/// processes that may use it, and the process with the least sets the number, at least 1. So bound
/// processes have what they were given, whether alone, by socket or all of the job's cores
/// together.
int cores_each(std::span<const CoreMask> masks);

}  // namespace tessera
