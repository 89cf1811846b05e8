// Divides the work of each operation over the team; the loops are in hot/.
#pragma once

#include "kernels/cpu/hot/hot.hpp"
#include "kernels/cpu/matmul.hpp"

namespace tessera::kernels::cpu {

struct Context {
  int threads;
  const HotKernels& hot;
  const Matmul& matmul;
  bool few_rows = false;  // CpuOptions
};

/// Most operations need no scratch; the others overload this.
template <typename Operation>
std::int64_t scratch_bytes(const Operation&, const Context&) {
  return 0;
}
std::int64_t scratch_bytes(const EmbedBackward&, const Context&);
std::int64_t scratch_bytes(const NormBackward&, const Context&);
std::int64_t scratch_bytes(const Linear&, const Context&);
std::int64_t scratch_bytes(const LinearBackwardInput&, const Context&);
std::int64_t scratch_bytes(const LinearBackwardWeight&, const Context&);
std::int64_t scratch_bytes(const Attention&, const Context&);
std::int64_t scratch_bytes(const AttentionBackward&, const Context&);
std::int64_t scratch_bytes(const Rope&, const Context&);
std::int64_t scratch_bytes(const Classify&, const Context&);
std::int64_t scratch_bytes(const ExpertLinear&, const Context&);
std::int64_t scratch_bytes(const ExpertLinearBackwardInput&, const Context&);
std::int64_t scratch_bytes(const ExpertLinearBackwardWeight&, const Context&);
std::int64_t scratch_bytes(const ExactSum&, const Context&);
std::int64_t scratch_bytes(const Quantize&, const Context&);
std::int64_t scratch_bytes(const RequantizeSum&, const Context&);

#define TESSERA_DECLARE(Operation) void run(const Operation&, const Context&);
TESSERA_EACH_OPERATION(TESSERA_DECLARE)
#undef TESSERA_DECLARE

}  // namespace tessera::kernels::cpu
