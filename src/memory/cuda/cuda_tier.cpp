#include "memory/cuda/cuda_tier.hpp"

namespace tessera::memory {

CudaAllocator cuda_allocator() {
  return {.allocate =
              [](std::int64_t bytes) {
                void* p = nullptr;
                const auto what =
                    fmt::format("cudaMalloc of {:.2f} GiB", static_cast<double>(bytes) / 0x1p30);
                check_cuda(cudaMalloc(&p, static_cast<std::size_t>(bytes)), what.c_str());
                return static_cast<std::byte*>(p);
              },
          .release = [](std::byte* base) { cudaFree(base); }};
}

CudaTier::CudaTier(const CudaQueue& queue, CudaAllocator allocator)
    : queue_(queue), allocator_(std::move(allocator)) {
  CUDA_TRY(cudaGetDevice(&gpu_));
  cudaStream_t stream = nullptr;
  CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  own_.reset(stream);
}

std::byte* CudaTier::allocate(std::int64_t bytes) {
  std::byte* p = allocator_.allocate(bytes);
  try {
    CUDA_TRY(cudaMemsetAsync(p, 0, static_cast<std::size_t>(bytes), own_.get()));
    CUDA_TRY(cudaStreamSynchronize(own_.get()));
  } catch (...) {
    allocator_.release(p);
    throw;
  }
  return p;
}

Tier::DeviceMemory CudaTier::device_memory() {
  std::size_t free = 0, total = 0;
  CUDA_TRY(cudaMemGetInfo(&free, &total));
  return {.in_use = static_cast<std::int64_t>(total - free),
          .total = static_cast<std::int64_t>(total)};
}

void CudaTier::release(std::byte* base, std::int64_t) { allocator_.release(base); }

void CudaTier::wait() {
  CUDA_TRY(cudaSetDevice(gpu_));  // each thread has a current one
  // Waits for this stream only: a receive on another may wait for a rank that waits here too.
  CUDA_TRY(cudaStreamSynchronize(queue_.stream));
}

void CudaTier::copy(void* to, const void* from, std::size_t bytes) {
  wait();
  CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, own_.get()));
  CUDA_TRY(cudaStreamSynchronize(own_.get()));
}

void CudaTier::write(std::byte* to, std::span<const std::byte> from) {
  copy(to, from.data(), from.size());
}

void CudaTier::read(const std::byte* from, std::span<std::byte> to) {
  copy(to.data(), from, to.size());
}

std::unique_ptr<streams::Task> CudaTier::start_copy(const std::byte* from, std::byte* to,
                                                    std::int64_t bytes) {
  CUDA_TRY(
      cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, queue_.stream));
  return nullptr;
}

/// Kernels find registered memory at the host's own addresses (unified addressing).
std::byte* PinnedTier::allocate(std::int64_t bytes) {
  std::byte* base = HostTier::allocate(bytes);
  try {
    const cudaError_t code =
        cudaHostRegister(base, static_cast<std::size_t>(bytes), cudaHostRegisterDefault);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // forgotten, because it is reported here
      throw MemoryError(
          fmt::format("{:.2f} GiB of the host's memory cannot be page-locked: raise what a job may "
                      "lock (ulimit -l, Slurm's --mem), or set checkpoint.async = false, and "
                      "offload.activations and offload.cache = \"none\"",
                      static_cast<double>(bytes) / 0x1p30));
    }
    check_cuda(code, "cudaHostRegister");
  } catch (...) {
    HostTier::release(base, bytes);
    throw;
  }
  return base;
}

void PinnedTier::release(std::byte* base, std::int64_t bytes) {
  cudaHostUnregister(base);
  HostTier::release(base, bytes);
}

}  // namespace tessera::memory
