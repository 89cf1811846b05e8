// What a rank computes on: kernels, memory, streams and groups that belong together.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "comm/group.hpp"
#include "deck/words.hpp"
#include "kernels/api/device.hpp"
#include "memory/streams.hpp"
#include "memory/tier.hpp"

namespace tessera::train {

struct Backend {
  std::unique_ptr<memory::Tier> device_tier;  // where kernels compute
  std::unique_ptr<memory::Tier> host_tier;    // what the host reads beside steps
  std::unique_ptr<kernels::Device> device;
  std::function<std::unique_ptr<memory::Streams>()> make_streams;
  /// As comm::make_mpi_group.
  std::function<std::unique_ptr<comm::Group>(std::span<const int> members,
                                             const comm::GroupShape& shape)>
      make_group;
};

/// cpu: kernels of the CPU, with so many threads. debug: the same, in memory that the host cannot
/// reach. auto: cpu.
Backend make_backend(deck::Backend kind, int threads);

}  // namespace tessera::train
