// The CUDA back end's operations: each launches its kernels.
#pragma once

#include "kernels/api/device.hpp"
#include "kernels/cuda/context.hpp"

namespace tessera::kernels::cuda {

#define TESSERA_DECLARE(Operation) void run(const Operation&, const Context&);
TESSERA_EACH_OPERATION(TESSERA_DECLARE)
#undef TESSERA_DECLARE

}  // namespace tessera::kernels::cuda
