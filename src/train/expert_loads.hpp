// How evenly routers spread choices over experts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.hpp"

namespace tessera::train {

struct ExpertLoads {
  std::int64_t layer = 0;
  std::vector<std::int64_t> choices;  // of each expert
  std::int64_t dropped = 0;           // of all of them

  /// The choices of the most chosen expert over the mean of all: 1 where all are chosen alike.
  double most() const;
  /// How many experts nobody chose.
  std::int64_t unused() const;
};

/// Of each layer that has experts, from what StepOutput::choices has.
std::vector<ExpertLoads> expert_loads(const model::ModelConfig& config,
                                      std::span<const std::int64_t> choices);

}  // namespace tessera::train
