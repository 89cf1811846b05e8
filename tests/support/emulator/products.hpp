// The library of matrix products as tests want it.
#pragma once

#include <functional>

#include "kernels/cuda/gemm.hpp"

namespace tessera::emulator {

/// From here on the emulated library refuses these products, as cuBLASLt may; running one is an
/// error. Null: it takes all.
void refuse_products(std::function<bool(const kernels::cuda::GemmKey&)> which);

/// From here on the emulated library finds these products faster in parts where it times them.
void make_faster_apart(std::function<bool(const kernels::cuda::GemmKey&)> which);

}  // namespace tessera::emulator
