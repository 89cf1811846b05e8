// Memory that the host cannot reach at the addresses that it is known by, as a GPU's is not:
// whoever takes such an address for the host's dies of it at once, on any machine. Each allocation
// is mapped nowhere at its own addresses and, for kernels and messages, once more at others.
#pragma once

#include <map>

#include "memory/tier.hpp"

namespace tessera::memory {

class HiddenTier : public Tier {
 public:
  std::byte* allocate(std::int64_t bytes) override;
  void release(std::byte* base, std::int64_t bytes) override;
  void write(std::byte* to, std::span<const std::byte> from) override;
  void read(const std::byte* from, std::span<std::byte> to) override;
  std::unique_ptr<streams::Task> start_copy(const std::byte* from, std::byte* to,
                                            std::int64_t bytes) override;
  std::byte* in_place(std::byte*) override { return nullptr; }

  /// Where work of the device finds what is at `address`; other addresses stay what they are.
  /// Safe from any thread between allocations.
  std::byte* reach(const std::byte* address) const;

 private:
  struct Mapping {
    std::int64_t bytes = 0;
    std::byte* reachable = nullptr;
  };
  std::map<const std::byte*, Mapping> mappings_;  // by hidden base
};

}  // namespace tessera::memory
