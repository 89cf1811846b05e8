// Inputs of plans whose traffic is quantised.
#pragma once

#include "plan/ir/inputs.hpp"

namespace tessera::test {

/// Gathers and sums travel in such blocks. Divides the model into units anew.
inline void travel_in_blocks(plan::PlanInputs& in, std::optional<kernels::BlockFormat> weights,
                             std::optional<kernels::BlockFormat> gradients,
                             std::int64_t tiles = 1) {
  in.numerics.weight_blocks = weights;
  in.numerics.gradient_blocks = gradients;
  in.model.units =
      model::model_units(in.model.config, std::max(in.layout.tensor_chunks, in.layout.mesh.tensor),
                         {.tiles = tiles,
                          .block = weights     ? weights->block
                                   : gradients ? gradients->block
                                               : 0});
}

}  // namespace tessera::test
