// What products leave to kernels of our own.
#pragma once

#include "kernels/cuda/context.hpp"

namespace tessera::kernels::cuda {

/// Queues what `product` does beyond without_last of it, whose result is there already. `bias`: as
/// of Matmul::run.
void finish(const Gemm& product, std::byte* bias, const Context& context);

}  // namespace tessera::kernels::cuda
