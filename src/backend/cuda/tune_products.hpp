// All ranks' choice of how matrix products are computed on GPUs, before the first step.
#pragma once

#include "backend/backend.hpp"
#include "kernels/cuda/matmul.hpp"

namespace tessera::backend {

/// Of the device whose products are tuned.
struct Products {
  kernels::cuda::Matmul& matmul;
  kernels::cuda::ProductRules rules;
  kernels::cuda::OwnKernels own;  // without them nothing is timed in parts
};

/// Rank 0 chooses how every product of any rank's calls is computed, as `tuning` says: by which
/// algorithm, and whether with bias and gelu within it or apart; all adopt it. What the library
/// refuses on any rank, all compute without gelu or bias within it. `tuning.say` is told what is
/// apart. Collective. Throws DeviceError on all ranks where it refuses a product that has neither.
void tune_products(const Products& products, std::span<const kernels::KernelCall> calls,
                   memory::Tier& tier, const comm::Control& control, const Tuning& tuning);

}  // namespace tessera::backend
