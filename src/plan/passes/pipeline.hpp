// Pipeline parallelism as an order of work: which layers each stage has, and in which order it runs
// forward and backward of its micro-batches. GPipe (Huang et al. 2019), 1F1B (Narayanan et al.
// 2019), interleaved 1F1B (Narayanan et al. 2021), zero bubble (Qi et al. 2023, ZB-H1).
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "plan/ir/inputs.hpp"

namespace tessera::plan {

/// Cuts layers of these costs into `parts` contiguous parts of at least one layer, so that the cost
/// of the most expensive part is as small as possible.
std::vector<Range> balanced_parts(std::span<const double> costs, std::int64_t parts);

/// What a stage does without interruption: one virtual stage's layers over one micro-batch.
struct PipelineAction {
  enum class Kind : std::uint8_t {
    forward,
    backward,         // gradients of the input and of the weights
    backward_input,   // all of backward that the input's gradient needs
    backward_weight,  // the rest: products that only make gradients of weights
  };
  Kind kind = Kind::forward;
  std::int64_t virtual_stage = 0;
  std::int64_t micro_batch = 0;
  bool operator==(const PipelineAction&) const = default;
};

/// What an action makes for others: the forward of a part of the layers over a micro-batch, or its
/// backward as far as the gradient of the part's input.
struct PipelineResult {
  bool backward = false;
  std::int64_t part = 0;
  std::int64_t micro_batch = 0;
  auto operator<=>(const PipelineResult&) const = default;
};
/// The result that an action on part `part` of `parts` waits for; nothing where it needs only what
/// its own stage has done before.
std::optional<PipelineResult> needed_by(const PipelineAction& action, std::int64_t part,
                                        std::int64_t parts);
/// The result of an action on part `part`; nothing where nobody waits for it.
std::optional<PipelineResult> result_of(const PipelineAction& action, std::int64_t part);

/// The actions of every stage, [stage], in order: virtual stage v of stage s has part v * stages +
/// s of the layers. The order comes from simulating the schedule's rule with a forward that takes 1
/// and a backward that takes 2, so it exists for any number of micro-batches. Without training
/// there are forwards only.
std::vector<std::vector<PipelineAction>> pipeline_actions(const PipelineRule& rule,
                                                          std::int64_t stages,
                                                          std::int64_t micro_batches,
                                                          bool training);

/// When each result exists, and when each action ends, [stage][action].
struct PipelineTimes {
  std::map<PipelineResult, double> there;
  std::vector<std::vector<double>> ends;
};
/// How long an action on a part takes.
using PipelineDuration = std::function<double(const PipelineAction& action, std::int64_t part)>;
/// The times when every stage does its actions in order, each as soon as what it needs is there.
/// Throws InternalError where a stage waits for ever.
PipelineTimes play(std::span<const std::vector<PipelineAction>> actions, std::int64_t parts,
                   const PipelineDuration& duration);

/// Where a stage receives: for each of its actions, the actions of the same stage whose inputs are
/// received just before it. All stages send and receive in one global order, that in which messages
/// are sent when a forward takes 1 and a backward 2. So a GPU that runs its messages one after
/// another, each until the other end is there, never deadlocks; and a message is on its way while
/// its receiver still computes.
std::vector<std::vector<PipelineAction>> pipeline_receives(
    std::span<const std::vector<PipelineAction>> actions, std::int64_t stage);

}  // namespace tessera::plan
