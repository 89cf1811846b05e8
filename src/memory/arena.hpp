// An arena: one allocation with a name, made in a tier before the first step. Plans place their
// buffers inside it; nothing is allocated afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "memory/tier.hpp"

namespace tessera::memory {

class Arena {
 public:
  /// Allocates `bytes` in the tier, which must outlive the arena. Call check_available() first for
  /// the host's memory, because the kernel kills a process that touches more than there is. Throws
  /// MemoryError naming the arena.
  Arena(std::string name, Tier& tier, std::int64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  const std::string& name() const { return name_; }
  Tier& tier() const { return tier_; }
  std::int64_t bytes() const { return bytes_; }
  std::byte* base() const { return base_; }

 private:
  std::string name_;
  Tier& tier_;
  std::int64_t bytes_;
  std::byte* base_ = nullptr;
};

/// Resident bytes of this process (VmRSS).
std::int64_t resident_bytes();
/// The most that it has ever had.
std::int64_t peak_resident_bytes();

/// Bytes that this node can still give to this process: MemAvailable, or less where its memory
/// cgroup (version 1 or 2) or one above it has a limit; file cache that the kernel would drop
/// counts as free. `root` is where /proc and /sys are.
std::int64_t available_bytes(const std::filesystem::path& root = "/");

/// Throws MemoryError unless `processes` processes can have `bytes` each of what this one sees
/// free: to be called before any of them allocates.
void check_available(std::int64_t bytes, std::int64_t processes,
                     const std::filesystem::path& root = "/");

}  // namespace tessera::memory
