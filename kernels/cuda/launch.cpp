#include "kernels/cuda/launch.hpp"

namespace tessera::kernels::cuda {

void check_cuda(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // so that it is not reported again
  const std::string text =
      fmt::format("{}: {} ({})", what, cudaGetErrorString(code), cudaGetErrorName(code));
  if (code == cudaErrorMemoryAllocation) throw MemoryError(text);
  throw DeviceError(text);
}

}  // namespace tessera::kernels::cuda
