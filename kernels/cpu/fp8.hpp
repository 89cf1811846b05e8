// Matrix products with fp8 operands, computed for real: operands become numbers of the format,
// which bf16 holds exactly, their products are added up in f32, and the sums are scaled back.
#pragma once

#include "kernels/cpu/operations.hpp"

namespace tessera::kernels::cpu {

/// For calls without a preactivation that have passed their contract; a bias gradient is not
/// computed.
void run_fp8(const Linear&, const Context&);
void run_fp8(const LinearBackwardInput&, const Context&);
void run_fp8(const LinearBackwardWeight&, const Context&);
std::int64_t fp8_scratch_bytes(const Linear&, const Context&);
std::int64_t fp8_scratch_bytes(const LinearBackwardInput&, const Context&);
std::int64_t fp8_scratch_bytes(const LinearBackwardWeight&, const Context&);

}  // namespace tessera::kernels::cpu
