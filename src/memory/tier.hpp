// A tier: where bytes live, how they get there from the host and back. Addresses of a tier are for
// the device that computes there; the host may use them only where in_place() says so.
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
  /// Memory that is zero and present. Throws MemoryError. Its user gives it back with release().
  virtual std::byte* allocate(std::int64_t bytes) = 0;
  virtual void release(std::byte* base, std::int64_t bytes) = 0;

  /// Copies between the host's memory and the tier's, after all work that was queued before on the
  /// stream that computes; done on return.
  virtual void write(std::byte* to, std::span<const std::byte> from) = 0;
  virtual void read(const std::byte* from, std::span<std::byte> to) = 0;
  /// A copy from here to here or to the host's memory, as work of a stream.
  virtual std::unique_ptr<streams::Task> start_copy(const std::byte* from, std::byte* to,
                                                    std::int64_t bytes) = 0;
  /// Whether its bytes are the host's memory, wherever they can be reached.
  virtual bool of_host() const { return true; }
  /// Returns once all work that was queued before on its device is done.
  virtual void wait() {}
  /// Memory that is not the host's: what there is, and what is in use, by anybody.
  struct Apart {
    std::int64_t in_use = 0, total = 0;
  };
  virtual Apart apart() { return {}; }
  /// Where the host reaches what is at `address`; nullptr: nowhere.
  virtual std::byte* in_place(std::byte* address) = 0;

  /// Bytes for the host to look at: in place, or read into `copy`.
  std::span<const std::byte> look(std::byte* from, std::int64_t bytes,
                                  std::vector<std::byte>& copy);
  /// f(bytes) fills what then is at `to`.
  template <typename F>
  void fill(std::byte* to, std::int64_t bytes, F&& f) {
    const auto n = static_cast<std::size_t>(bytes);
    if (std::byte* there = in_place(to)) return std::forward<F>(f)(std::span(there, n));
    std::vector<std::byte> host(n);
    std::forward<F>(f)(std::span(host));
    write(to, host);
  }
};

/// Memory of the host; kernels of the CPU compute there.
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
