// Checks arguments and divides the work of each operation over the team; the loops are in hot/.
#pragma once

#include "kernels/cpu/hot/hot.hpp"
#include "kernels/cpu/matmul.hpp"

namespace tessera::kernels::cpu {

struct Context {
  int threads;
  const HotKernels& hot;
  Matmul& matmul;
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
std::int64_t scratch_bytes(const ExactSum&, const Context&);
std::int64_t scratch_bytes(const RequantizeSum&, const Context&);

void run(const Embed&, const Context&);
void run(const EmbedBackward&, const Context&);
void run(const AddPositions&, const Context&);
void run(const AddNorm&, const Context&);
void run(const NormBackward&, const Context&);
void run(const AddPending&, const Context&);
void run(const ApplyDropout&, const Context&);
void run(const Linear&, const Context&);
void run(const LinearBackwardInput&, const Context&);
void run(const LinearBackwardWeight&, const Context&);
void run(const Attention&, const Context&);
void run(const AttentionBackward&, const Context&);
void run(const Rope&, const Context&);
void run(const Activate&, const Context&);
void run(const ActivateBackward&, const Context&);
void run(const Classify&, const Context&);
void run(const ClassifyPart&, const Context&);
void run(const ClassifyLoss&, const Context&);
void run(const ClassifyGradient&, const Context&);
void run(const Verdict&, const Context&);
void run(const AdamUpdate&, const Context&);
void run(const Fill&, const Context&);
void run(const Convert&, const Context&);
void run(const TreeSum&, const Context&);
void run(const ExactSum&, const Context&);
void run(const Quantize&, const Context&);
void run(const SumQuantized&, const Context&);
void run(const RequantizeSum&, const Context&);

}  // namespace tessera::kernels::cpu
