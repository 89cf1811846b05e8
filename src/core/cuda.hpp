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

/// Throws MemoryError where the GPU has no memory left, DeviceError for everything else, with the
/// call's text, or what it was for, and CUDA's own message.
inline void check_cuda(cudaError_t code, const char* call,
                       std::source_location where = std::source_location::current()) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // so that it is not reported again
  const std::string message =
      fmt::format("{}: {} ({})", call, cudaGetErrorString(code), cudaGetErrorName(code));
  if (code == cudaErrorMemoryAllocation) throw MemoryError(message, where);
  throw DeviceError(message, where);
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
