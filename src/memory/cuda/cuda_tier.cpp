#include "memory/cuda/cuda_tier.hpp"

namespace tessera::memory {
namespace {

double gib(std::size_t bytes) { return static_cast<double>(bytes) / 0x1p30; }

}  // namespace

CudaTier::CudaTier(const CudaQueue& queue) : queue_(queue) {
  CUDA_TRY(cudaGetDevice(&gpu_));
  cudaStream_t stream = nullptr;
  CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  own_.reset(stream);
}

std::byte* CudaTier::allocate(std::int64_t bytes) {
  void* p = nullptr;
  const auto n = static_cast<std::size_t>(bytes);
  if (const cudaError_t code = cudaMalloc(&p, n); code == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // told of below
    std::size_t free = 0, total = 0;
    CUDA_TRY(cudaMemGetInfo(&free, &total));
    throw MemoryError(fmt::format(
        "the GPU has {:.2f} GiB free of {:.2f}, {:.2f} are needed: end what else runs on it "
        "(nvidia-smi lists it), or make the step smaller (check --options shows how)",
        gib(free), gib(total), gib(n)));
  } else {
    check_cuda(code, "cudaMalloc");
  }
  try {
    CUDA_TRY(cudaMemsetAsync(p, 0, n, own_.get()));
    CUDA_TRY(cudaStreamSynchronize(own_.get()));
  } catch (...) {
    cudaFree(p);
    throw;
  }
  return static_cast<std::byte*>(p);
}

std::int64_t CudaTier::apart_in_use() {
  std::size_t free = 0, total = 0;
  CUDA_TRY(cudaMemGetInfo(&free, &total));
  return static_cast<std::int64_t>(total - free);
}

void CudaTier::release(std::byte* base, std::int64_t) { cudaFree(base); }

void CudaTier::wait() {
  CUDA_TRY(cudaSetDevice(gpu_));  // each thread has a current one
  // Not for all streams: a receive may wait for a rank that is here too.
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

std::unique_ptr<Task> CudaTier::start_copy(const std::byte* from, std::byte* to,
                                           std::int64_t bytes) {
  CUDA_TRY(
      cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, queue_.stream));
  return nullptr;
}

std::byte* PinnedTier::allocate(std::int64_t bytes) {
  std::byte* base = HostTier::allocate(bytes);
  try {
    CUDA_TRY(cudaHostRegister(base, static_cast<std::size_t>(bytes), cudaHostRegisterDefault));
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
