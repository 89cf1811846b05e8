// Momentum that travels in place of gradients, as blocks of signs (1-bit Adam: Tang et al. 2021).
// Each rank's gradient joins the momentum that all ranks have; the sum of that over ranks is the
// mean of their momentum, whose owner rounds it again and sends it to all. What the three roundings
// lose, of contributions, of sums of nodes and of the mean, is added in the next step.
//
// A block has no sign for 0: padding that shares one with elements is cleared wherever it is
// decoded, so that it stays 0 in the state and in what is summed.
#pragma once

#include <optional>

#include "plan/passes/hops.hpp"
#include "plan/passes/state.hpp"
#include "plan/passes/tensor_table.hpp"

namespace tessera::plan {

/// Of a unit, the mean of momentum on its way: in blocks, (1, ranks, bytes of a shard), and what
/// roundings of it and of sums of nodes have lost, bf16, as UnitState has those of earlier steps.
struct MeanOnItsWay {
  View codes, lost_of_mean, lost_of_node;
};

/// What comes before and after the reduction of a unit's gradients.
class MomentumExchange {
 public:
  MomentumExchange(Plan& plan, const PlanInputs& inputs, const std::vector<UnitState>& states);

  /// The gradient (padded) becomes this rank's contribution: beta m / D + (1 - beta) g, with the
  /// loss scale, for D ranks. In the first such step m is gathered before.
  Calls join(std::size_t unit, const View& gradient);
  /// The mean, (shard) of this rank, goes to all ranks. What they will have of it is decoded here
  /// too, and becomes the gradient that leads there from the momentum before: what the norm is of.
  Calls send(std::size_t unit, const View& mean, MeanOnItsWay& way);

 private:
  const UnitState::Kept& momentum_of(std::size_t unit) const;

  Plan& plan_;
  const PlanInputs& in_;
  const std::vector<UnitState>& states_;
  comm::Route route_;  // of gathers
  TurnStaging momentum_{"momentum between nodes"}, leaving_{"means that leave"},
      codes_{"means between nodes"};
};

/// What moves a unit's momentum where the step is applied: what has come in blocks, on every rank,
/// and else its summed gradient. `lost`: by the roundings of this rank's contribution; `decoded` is
/// staging for what has come.
std::vector<Op> keep_momentum(Plan& plan, const PlanInputs& inputs, std::size_t unit,
                              const UnitState& state, const View& gradient, const View& lost,
                              const MeanOnItsWay& way, Staging& decoded);

/// Of 1-bit LAMB, in warm-up: each tensor's ratio enters the mean of its ratios, once the sums over
/// tensors are those of all ranks. Nothing for other optimizers.
std::optional<Op> average_trust(const Plan& plan, const PlanInputs& inputs, std::size_t unit,
                                const UnitState& state, const TensorTable& sums);
/// And once momentum is compressed: second moments go on by this step's gradients (shards, by
/// unit), and factors of tensors follow the largest of what these have become. Visits from `visit`
/// on.
std::vector<Op> follow_moments(Plan& plan, const PlanInputs& inputs,
                               const std::vector<UnitState>& states,
                               const std::vector<View>& gradients, std::int32_t& visit);

/// Adds what roundings of sums of nodes and of the mean have lost to a unit's `error_sum`, which
/// checkpoints have.
std::vector<Op> add_errors_of_mean(Plan& plan, const PlanInputs& inputs, std::size_t unit,
                                   const UnitState& state, Staging& of_node, Staging& arriving);

}  // namespace tessera::plan
