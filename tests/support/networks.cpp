#include "support/networks.hpp"

#include <algorithm>
#include <utility>

#include "comm/transport_group.hpp"

namespace tessera::test {
namespace {

/// Peers are ranks of a group here, world ranks below.
class OfMembers : public comm::Transport {
 public:
  OfMembers(std::unique_ptr<comm::Transport> world, std::vector<int> members)
      : world_(std::move(world)), members_(std::move(members)) {}
  comm::Request send(int peer, const std::byte* from, std::int64_t bytes) override {
    return world_->send(members_[static_cast<std::size_t>(peer)], from, bytes);
  }
  comm::Request receive(int peer, std::byte* to, std::int64_t bytes) override {
    return world_->receive(members_[static_cast<std::size_t>(peer)], to, bytes);
  }
  bool test(comm::Request& request) override { return world_->test(request); }
  void cancel(comm::Request& request) override { world_->cancel(request); }

 private:
  std::unique_ptr<comm::Transport> world_;
  std::vector<int> members_;
};

}  // namespace

Networks::Networks(comm::Sends sends) {
  for (std::size_t c = 0; c < kChannels; ++c) networks_.emplace_back(sends);
}

train::Groups Networks::groups(const plan::PlanInputs& inputs, std::int64_t rank) {
  train::Groups groups;
  for (const plan::ChannelRow& row : plan::kChannelRows) {
    const auto members = inputs.layout.mesh.members(rank, row.ranks);
    if (members.empty()) continue;
    if (const auto& shared = shared_with(inputs.layout.mesh, row); shared.channel != row.channel) {
      groups[row.channel] = groups[shared.channel];
      continue;
    }
    const auto self = std::find(members.begin(), members.end(), static_cast<int>(rank));
    groups[row.channel] = comm::make_transport_group(
        std::make_unique<OfMembers>(of(row.channel).transport(static_cast<int>(rank)), members),
        group_shape(inputs, inputs.layout.mesh.place_of(rank), row.ranks), self - members.begin());
  }
  return groups;
}

}  // namespace tessera::test
