// What every operation of the CUDA back end may use besides its arguments.
#pragma once

#include "core/cuda.hpp"
#include "kernels/cuda/gemm.hpp"

namespace tessera::kernels::cuda {

class Matmul;
class Sdpa;

using Queue = CudaQueue;

struct Context {
  const Queue& queue;
  int multiprocessors;        // for the size of grids; no bit of a result depends on it
  std::int64_t shared_bytes;  // that a block may have; no bit of a result depends on it either
  ProductRules rules;
  Matmul& matmul;
  Sdpa& sdpa;
};

}  // namespace tessera::kernels::cuda
