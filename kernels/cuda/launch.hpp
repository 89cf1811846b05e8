// The one way to launch a kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "core/error.hpp"
#include "kernels/cuda/context.hpp"

namespace tessera::kernels::cuda {

struct Launch {
  const char* operation;
  cudaStream_t stream;
  std::int64_t blocks;
  int threads;
  std::int64_t shared_bytes;  // of dynamic shared memory
};

/// On the context's stream of now.
inline Launch on(const Context& context, const char* operation, std::int64_t blocks, int threads,
                 std::int64_t shared_bytes = 0) {
  return {operation, context.queue.stream, blocks, threads, shared_bytes};
}

/// Queues `kernel`; nothing happens where there are no blocks.
template <typename... Parameters>
void launch(const Launch& l, void (*kernel)(Parameters...),
            const std::type_identity_t<Parameters>&... arguments) {
  if (l.blocks == 0) return;
  TESSERA_CHECK(l.blocks <= 0x7fffffff, "{}: {} blocks", l.operation, l.blocks);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(l.blocks));
  config.blockDim = dim3(static_cast<unsigned>(l.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(l.shared_bytes);
  config.stream = l.stream;
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), l.operation);
}

/// Launches a kernel that may need more shared memory than is had without asking.
template <typename... Parameters>
void launch_large(const Launch& l, void (*kernel)(Parameters...),
                  const std::type_identity_t<Parameters>&... arguments) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(l.shared_bytes)),
             l.operation);
  launch(l, kernel, arguments...);
}

}  // namespace tessera::kernels::cuda
