// A GPU's memory, and host memory that it copies from and to at full speed.
#pragma once

#include <functional>

#include "core/cuda.hpp"
#include "memory/tier.hpp"

namespace tessera::memory {

/// Where device memory comes from.
struct CudaAllocator {
  std::function<std::byte*(std::int64_t bytes)> allocate;  // throws MemoryError
  std::function<void(std::byte* base)> release;
};
/// cudaMalloc.
CudaAllocator cuda_allocator();

/// The current GPU's memory: one allocation an arena.
class CudaTier : public Tier {
 public:
  explicit CudaTier(const CudaQueue& queue, CudaAllocator allocator = cuda_allocator());
  std::byte* allocate(std::int64_t bytes) override;
  void release(std::byte* base, std::int64_t bytes) override;
  void write(std::byte* to, std::span<const std::byte> from) override;
  void read(const std::byte* from, std::span<std::byte> to) override;
  std::unique_ptr<streams::Task> start_copy(const std::byte* from, std::byte* to,
                                            std::int64_t bytes) override;
  bool of_host() const override { return false; }
  void wait() override;
  DeviceMemory device_memory() override;
  std::byte* in_place(std::byte*) override { return nullptr; }

 private:
  void copy(void* to, const void* from, std::size_t bytes);

  const CudaQueue& queue_;
  CudaAllocator allocator_;
  int gpu_ = 0;
  CudaHandle<cudaStream_t> own_;  // of copies that the host waits for
};

/// Page-locked memory of the host.
class PinnedTier : public HostTier {
 public:
  std::byte* allocate(std::int64_t bytes) override;
  void release(std::byte* base, std::int64_t bytes) override;
};

}  // namespace tessera::memory
