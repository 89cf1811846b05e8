// What every operation of the CUDA back end may use besides its arguments.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/gemm.hpp"

namespace tessera::kernels::cuda {

class Matmul;
class Sdpa;

/// The stream on which work is queued now; device, collectives and copies of a rank share it.
struct Queue {
  cudaStream_t stream = nullptr;
};

struct Context {
  const Queue& queue;
  int multiprocessors;  // for the size of grids; no bit of a result depends on it
  MatmulMath math;
  Matmul& matmul;
  Sdpa& sdpa;
};

}  // namespace tessera::kernels::cuda
