// What products leave to kernels of our own.
#pragma once

#include "kernels/cuda/context.hpp"

namespace tessera::kernels::cuda {

/// Queues what `whole` does beyond a part of it that is done already. `bias`: (m), absent where the
/// key has none.
void finish(const Gemm& whole, const Gemm& done, const View& bias, const Context& context);

}  // namespace tessera::kernels::cuda
