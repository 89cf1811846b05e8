// Products of few rows multiply frozen matrices as they are kept.
#pragma once

#include "plan/ir/inputs.hpp"

namespace tessera::plan {

/// Where a rank has all codes of a frozen unit, and products of so few rows as a pass of generation
/// has are all that reads its elements, these multiply the codes (Device::multiplies_codes): no
/// window of elements is written, and of memory only codes are read. To be called once windows are
/// filled, before what lives elsewhere is fetched.
void multiply_from_codes(Plan& plan, const PlanInputs& inputs);

}  // namespace tessera::plan
