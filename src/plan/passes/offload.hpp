// What lives elsewhere while nothing uses it (Rajbhandari et al. 2021, ZeRO-Infinity).
#pragma once

#include "plan/ir/inputs.hpp"

namespace tessera::plan {

/// Saved activations that are not used for a while go to inputs.offload.activations after the visit
/// that made them, and come back into other device memory inputs.offload.ahead visits before the
/// next visit that reads them. To be called once all ops that use them are there.
void offload_activations(Plan& plan, const PlanInputs& inputs);

}  // namespace tessera::plan
