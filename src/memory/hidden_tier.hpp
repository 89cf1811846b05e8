// Memory that the host cannot use at the addresses that it is given, as it cannot use a GPU's: code
// that does so by mistake crashes at once, on any machine. Each allocation is inaccessible at its
// own addresses and mapped once more, at others, for kernels and messages.
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

  /// The address at which kernels and messages find what is at `address`; addresses that are not of
  /// this tier are returned as they are. May be called by any thread while nothing is allocated or
  /// released.
  std::byte* reach(const std::byte* address) const;

 private:
  struct Mapping {
    std::int64_t bytes = 0;
    std::byte* reachable = nullptr;
  };
  std::map<const std::byte*, Mapping> mappings_;  // by hidden base
};

}  // namespace tessera::memory
