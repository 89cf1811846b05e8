// Pipeline parallelism as an order of work: which layers each stage has, and in which order it runs
// forward and backward of its micro-batches. GPipe (Huang et al. 2019), 1F1B (Narayanan et al.
// 2019), interleaved 1F1B (Narayanan et al. 2021), zero bubble (Qi et al. 2023, ZB-H1).
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/ir/inputs.hpp"

namespace tessera::plan {

/// Cuts layers of these costs into `parts` contiguous parts of one layer or more so that the
/// dearest part is as cheap as can be.
std::vector<Range> balanced_parts(std::span<const double> costs, std::int64_t parts);

/// What a stage does at once: one chunk's layers over one micro-batch.
struct PipelineAction {
  enum class Kind : std::uint8_t {
    forward,
    backward,         // gradients of the input and of the weights
    backward_input,   // of the input, and of what is computed along with it
    backward_weight,  // of the rest
  };
  Kind kind = Kind::forward;
  std::int64_t chunk = 0;
  std::int64_t micro_batch = 0;
  bool operator==(const PipelineAction&) const = default;
};

/// What another action gives: forward of a part of the layers over a micro-batch, or its backward
/// as far as the input's gradient.
struct PipelineResult {
  bool backward = false;
  std::int64_t part = 0;
  std::int64_t micro_batch = 0;
  auto operator<=>(const PipelineResult&) const = default;
};
/// What an action on part `part` of `parts` must wait for; nothing where it only needs what its own
/// stage has done before.
std::optional<PipelineResult> needed_by(const PipelineAction& action, std::int64_t part,
                                        std::int64_t parts);
/// What it gives to others; nothing where nobody waits for it.
std::optional<PipelineResult> result_of(const PipelineAction& action, std::int64_t part);

/// The actions of every stage, [stage], in order: chunk v of stage s has part v * stages + s of the
/// layers. Found by playing the schedule's rule with forward 1 and backward 2 long; any number of
/// micro-batches works. Forward only where nothing trains.
std::vector<std::vector<PipelineAction>> pipeline_actions(const PipelineRule& rule,
                                                          std::int64_t stages,
                                                          std::int64_t micro_batches,
                                                          bool training);

/// When a stage receives: for each of its actions, those actions of the stage whose input is
/// received just before it. All stages send and receive in one order, that in which messages are
/// sent when forward takes 1 and backward 2: so a GPU that runs its messages one after another,
/// each until its other end is there, comes to its end; and a message is on its way while its
/// receiver computes.
std::vector<std::vector<PipelineAction>> pipeline_receives(
    std::span<const std::vector<PipelineAction>> actions, std::int64_t stage);

}  // namespace tessera::plan
