// The CUDA back end's operations: each checks its arguments and launches its kernels.
#pragma once

#include "kernels/api/device.hpp"
#include "kernels/cuda/context.hpp"

namespace tessera::kernels::cuda {

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

}  // namespace tessera::kernels::cuda
