// How much of a pipeline's time its stages spend waiting for one another, by the schedule alone.
#pragma once

#include <span>

#include "plan/passes/pipeline.hpp"

namespace tessera::plan {

/// The share of all stages' time, from the first forward to the last backward, in which they have
/// nothing to do: 0 to 1. A forward of part i of the layers (v * stages + s, as in layer_parts)
/// takes costs[i], its backward `backward` times as long; messages take no time.
double pipeline_bubble(const PipelineRule& rule, std::int64_t stages, std::int64_t micro_batches,
                       std::span<const double> costs, double backward = 2);

}  // namespace tessera::plan
