// A tier is a kind of memory: allocation, and copies between it and the host. The addresses it
// gives are for the device that computes there; the host may use them only where in_place() says
// so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "streams/tasks.hpp"

namespace tessera::memory {

class Tier {
 public:
  virtual ~Tier() = default;
  /// Zeroed memory whose pages are present. Throws MemoryError. To be given back with release().
  virtual std::byte* allocate(std::int64_t bytes) = 0;
  virtual void release(std::byte* base, std::int64_t bytes) = 0;

  /// Copies between the host's memory and the tier's, after all work that was queued before on the
  /// compute stream; complete on return.
  virtual void write(std::byte* to, std::span<const std::byte> from) = 0;
  virtual void read(const std::byte* from, std::span<std::byte> to) = 0;
  /// A copy within this memory, or between it and the host's, as work of a stream.
  virtual std::unique_ptr<streams::Task> start_copy(const std::byte* from, std::byte* to,
                                                    std::int64_t bytes) = 0;
  /// Whether its bytes are physically in the host's memory, at whatever addresses.
  virtual bool of_host() const { return true; }
  /// Returns once all work that was queued before on the device's current stream is done.
  virtual void wait() {}
  /// The device's own memory: its size, and how much of it anybody uses. 0 for memory of the host.
  struct DeviceMemory {
    std::int64_t in_use = 0, total = 0;
  };
  virtual DeviceMemory device_memory() { return {}; }
  /// The address at which the host can use what is at `address`; nullptr: there is none.
  virtual std::byte* in_place(std::byte* address) = 0;

  /// The tier's bytes for the host to read: in place where possible, else copied into `copy`.
  std::span<const std::byte> host_bytes(std::byte* from, std::int64_t bytes,
                                        std::vector<std::byte>& copy);
  /// Has f(bytes) write what `to` shall hold: in place where possible, else into memory that is
  /// copied there.
  template <typename F>
  void fill(std::byte* to, std::int64_t bytes, F&& f) {
    const auto n = static_cast<std::size_t>(bytes);
    if (std::byte* there = in_place(to)) return std::forward<F>(f)(std::span(there, n));
    std::vector<std::byte> host(n);
    std::forward<F>(f)(std::span(host));
    write(to, host);
  }
};

/// Memory of the host, where kernels of the CPU compute.
class HostTier : public Tier {
 public:
  std::byte* allocate(std::int64_t bytes) override;
  void release(std::byte* base, std::int64_t bytes) override;
  void write(std::byte* to, std::span<const std::byte> from) override;
  void read(const std::byte* from, std::span<std::byte> to) override;
  std::unique_ptr<streams::Task> start_copy(const std::byte* from, std::byte* to,
                                            std::int64_t bytes) override;
  std::byte* in_place(std::byte* address) override { return address; }
};

}  // namespace tessera::memory
