// The groups of a whole job in one process: a loopback network for each channel.
#pragma once

#include <deque>

#include "comm/loopback.hpp"
#include "plan/passes/make_plan.hpp"
#include "train/execution/executor.hpp"

namespace tessera::test {

using plan::Channel, plan::kChannels;

/// A channel's messages are between world ranks: a pair of ranks is together in one of its groups
/// only.
class Networks {
 public:
  explicit Networks(comm::Sends sends = comm::Sends::buffered);

  /// The groups of a rank of the mesh, those of one member too; this object must outlive them.
  train::Groups groups(const plan::PlanInputs& inputs, std::int64_t rank);
  comm::Loopback& of(Channel channel) { return networks_[static_cast<std::size_t>(channel)]; }

 private:
  std::deque<comm::Loopback> networks_;  // by channel
};

}  // namespace tessera::test
