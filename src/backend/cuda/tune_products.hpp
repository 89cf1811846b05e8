// All ranks' choice of how matrix products are computed on GPUs, before the first step.
#pragma once

#include "backend/backend.hpp"
#include "kernels/cuda/matmul.hpp"

namespace tessera::backend {

/// Rank 0 chooses an algorithm for every product of any rank's calls, as `tuning` says, and all
/// adopt it. What the library refuses on any rank, all compute without gelu or bias within it,
/// which `tuning.say` is told. Collective. Throws DeviceError on all ranks where it refuses a
/// product that has neither.
void tune_products(kernels::cuda::Matmul& matmul, std::span<const kernels::KernelCall> calls,
                   const kernels::cuda::ProductRules& rules, memory::Tier& tier,
                   const comm::Control& control, const Tuning& tuning);

}  // namespace tessera::backend
