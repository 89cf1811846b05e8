#include "memory/hidden_tier.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "core/limits.hpp"

namespace tessera::memory {

std::byte* HiddenTier::allocate(std::int64_t bytes) {
  void* hidden = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (hidden == MAP_FAILED) memory_refused(fmt::format("map {} bytes", bytes), errno);
  auto* base = static_cast<std::byte*>(hidden);
  try {
    mappings_[base] = {};
    mappings_[base] = {.bytes = bytes, .reachable = HostTier().allocate(bytes)};
  } catch (...) {
    mappings_.erase(base);
    munmap(hidden, static_cast<std::size_t>(bytes));
    throw;
  }
  return base;
}

void HiddenTier::release(std::byte* base, std::int64_t bytes) {
  HostTier().release(mappings_.at(base).reachable, bytes);
  mappings_.erase(base);
  munmap(base, static_cast<std::size_t>(bytes));
}

std::byte* HiddenTier::reach(const std::byte* address) const {
  auto it = mappings_.upper_bound(address);
  if (it != mappings_.begin()) {
    const auto& [base, mapping] = *--it;
    if (address - base < mapping.bytes) return mapping.reachable + (address - base);
  }
  return const_cast<std::byte*>(address);
}

void HiddenTier::write(std::byte* to, std::span<const std::byte> from) {
  std::memcpy(reach(to), from.data(), from.size());
}

void HiddenTier::read(const std::byte* from, std::span<std::byte> to) {
  std::memcpy(to.data(), reach(from), to.size());
}

std::unique_ptr<streams::Task> HiddenTier::start_copy(const std::byte* from, std::byte* to,
                                                      std::int64_t bytes) {
  return streams::make_copy_task(reach(from), reach(to), bytes);
}

}  // namespace tessera::memory
