// The groups of a whole job in one process: a loopback network for each kind that a rank has.
#pragma once

#include <deque>

#include "comm/loopback.hpp"
#include "plan/make_plan.hpp"
#include "train/executor.hpp"

namespace tessera::test {

/// The members of train::Groups.
enum class Channel : std::uint8_t { world, gather, reduce, tensor, forward, backward, ends };
inline constexpr std::size_t kChannels = 7;

/// Messages of one channel are between world ranks: a pair of them is in one of its groups only.
class Networks {
 public:
  explicit Networks(comm::Sends sends = comm::Sends::buffered);

  /// The groups of a rank of the mesh, those of one member too; this object must outlive them.
  train::Groups groups(const plan::PlanInputs& inputs, std::int64_t rank);
  comm::Loopback& of(Channel channel) { return networks_[static_cast<std::size_t>(channel)]; }

 private:
  std::deque<comm::Loopback> networks_;  // by channel
};

/// f(channel, its group in `groups`).
template <typename F>
void each_channel(train::Groups& groups, F&& f) {
  f(Channel::world, groups.world), f(Channel::gather, groups.gather);
  f(Channel::reduce, groups.reduce), f(Channel::tensor, groups.tensor);
  f(Channel::forward, groups.forward), f(Channel::backward, groups.backward);
  f(Channel::ends, groups.ends);
}

}  // namespace tessera::test

template <>
struct tessera::EnumWords<tessera::test::Channel> {
  using C = tessera::test::Channel;
  static constexpr std::array table = {
      std::pair{C::world, "world"},     std::pair{C::gather, "gather"},
      std::pair{C::reduce, "reduce"},   std::pair{C::tensor, "tensor"},
      std::pair{C::forward, "forward"}, std::pair{C::backward, "backward"},
      std::pair{C::ends, "ends"}};
};
