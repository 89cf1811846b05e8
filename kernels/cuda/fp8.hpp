// What surrounds cuBLASLt's products of fp8 operands.
#pragma once

#include "kernels/cuda/context.hpp"

namespace tessera::kernels::cuda {

/// Fills the operand's codes and scale, for the operation of this name.
void convert_to_fp8(const Fp8Operand& operand, const char* operation, const Context& context);

/// y (..., N) += bias (N), each of any type.
void add_bias(const View& y, const View& bias, const char* operation, const Context& context);

}  // namespace tessera::kernels::cuda
