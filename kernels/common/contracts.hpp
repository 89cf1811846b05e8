// What every back end checks of an operation's arguments before it runs: types, shapes and ranges
// of settings, not what memory holds. Each throws InternalError.
#pragma once

#include "kernels/api/device.hpp"

namespace tessera::kernels {

void check(const Embed&);
void check(const EmbedBackward&);
void check(const AddPositions&);
void check(const AddNorm&);
void check(const NormBackward&);
void check(const AddPending&);
void check(const ApplyDropout&);
void check(const Linear&);
void check(const LinearBackwardInput&);
void check(const LinearBackwardWeight&);
void check(const Attention&);
void check(const AttentionBackward&);
void check(const Rope&);
void check(const Activate&);
void check(const ActivateBackward&);
void check(const Classify&);
void check(const ClassifyPart&);
void check(const ClassifyLoss&);
void check(const ClassifyGradient&);
void check(const Verdict&);
void check(const AdamUpdate&);
void check(const Fill&);
void check(const Convert&);
void check(const TreeSum&);
void check(const ExactSum&);
void check(const Quantize&);
void check(const SumQuantized&);
void check(const RequantizeSum&);

/// Whether the call has as many bytes of scratch as it needs.
void check_scratch(const KernelCall& call, std::int64_t needed);

/// The part of NormBackward's that its scratch needs.
void check_groups(const NormBackward&);

}  // namespace tessera::kernels
