// The CUDA back end's operations: each checks its arguments and launches its kernels.
#pragma once

#include "kernels/api/device.hpp"
#include "kernels/cuda/context.hpp"

namespace tessera::kernels::cuda {

void run(const Activate&, const Context&);
void run(const ActivateBackward&, const Context&);

}  // namespace tessera::kernels::cuda
