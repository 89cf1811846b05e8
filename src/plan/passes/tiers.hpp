// Brings what lives elsewhere to where ops use it, and back (Rajbhandari et al. 2021,
// ZeRO-Infinity).
#pragma once

#include "plan/ir/inputs.hpp"

namespace tessera::plan {

/// Where an op uses a buffer that lies elsewhere than the op runs, it uses a stand-in: a buffer of
/// the step that the bytes are fetched into inputs.offload.ahead visits before, and evicted from
/// after the visit that has written them. Updates at the end of a step count as visits of their
/// own. Uses that follow closely share a stand-in. Saved activations that are not used for a while
/// go to inputs.offload.activations meanwhile. To be called once all ops that use them are there.
void tiers(Plan& plan, const PlanInputs& inputs);

}  // namespace tessera::plan
