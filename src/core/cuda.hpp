// What all CUDA code shares: checked calls, handles that free themselves, and the stream that work
// goes to.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <type_traits>

#include "core/error.hpp"

namespace tessera {

/// The stream on which work is queued now; device, collectives and copies of a rank share it.
struct CudaQueue {
  cudaStream_t stream = nullptr;
};

/// Throws MemoryError, which says what the GPU had no memory for, how much it has, and what to do.
[[noreturn]] inline void gpu_is_full(std::string_view what,
                                     std::source_location where = std::source_location::current()) {
  std::size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  cudaGetLastError();
  const auto gib = [](std::size_t bytes) { return static_cast<double>(bytes) / 0x1p30; };
  throw MemoryError(
      fmt::format("{}: the GPU has {:.2f} GiB free of {:.2f}: end what else runs on it (nvidia-smi "
                  "lists it), or make the step smaller (check --fit and --options show how)",
                  what, gib(free), gib(total)),
      where);
}

/// Throws as gpu_is_full() where the GPU has no memory left, DeviceError for everything else, with
/// the call's text, or what it was for, and CUDA's own message.
inline void check_cuda(cudaError_t code, const char* call,
                       std::source_location where = std::source_location::current()) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // so that it is not reported again
  if (code == cudaErrorMemoryAllocation) gpu_is_full(call, where);
  throw DeviceError(
      fmt::format("{}: {} ({})", call, cudaGetErrorString(code), cudaGetErrorName(code)), where);
}
#define CUDA_TRY(call) ::tessera::check_cuda((call), #call)

struct DestroyCuda {
  void operator()(cudaStream_t s) const { cudaStreamDestroy(s); }
  void operator()(cudaEvent_t e) const { cudaEventDestroy(e); }
  void operator()(cudaGraph_t g) const { cudaGraphDestroy(g); }
  void operator()(cudaGraphExec_t g) const { cudaGraphExecDestroy(g); }
};
template <typename Handle>
using CudaHandle = std::unique_ptr<std::remove_pointer_t<Handle>, DestroyCuda>;

}  // namespace tessera
