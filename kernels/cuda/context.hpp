// What every operation of the CUDA back end may use besides its arguments.
#pragma once

#include "core/cuda.hpp"

namespace tessera::kernels::cuda {

using Queue = CudaQueue;

struct Context {
  const Queue& queue;
  int multiprocessors;  // for the size of grids; no bit of a result depends on it
};

}  // namespace tessera::kernels::cuda
