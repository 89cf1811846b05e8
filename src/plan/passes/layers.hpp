// The model as layers (the embedding, the blocks, the head), and which pipeline stage has which.
#pragma once

#include "plan/ir/inputs.hpp"
#include "plan/passes/record.hpp"

namespace tessera::plan {

/// One place in the model where units are used together.
struct Layer {
  LayerKind kind = LayerKind::block;
  std::vector<std::size_t> units;  // as RecordInputs::units
};
std::vector<Layer> model_layers(const std::vector<model::UnitDesc>& units);

/// Of each layer, the floating-point operations of its matrix products in a forward, for one token
/// of the model's longest sequence.
std::vector<double> layer_costs(const PlanInputs& inputs);

/// The layers cut into contiguous parts, one for each virtual stage: part v * stages + s is
/// virtual stage v of stage s. Where the deck does not say where parts begin, their costs are
/// balanced.
std::vector<Range> layer_parts(const PlanInputs& inputs);

/// By unit: whether pipeline stage `stage` uses it.
std::vector<bool> held_units(const PlanInputs& inputs, std::int64_t stage);

/// Whether the gradients that the embedding and the head make of a tied matrix are summed
/// separately and added at the end. They are where the two uses are on different stages, and in
/// layout mode, where one stage must give the bits of several.
bool tied_uses_separate(const PlanInputs& inputs);

/// For each tensor rank, the first tensor rank whose shares of all units have the same sizes.
std::vector<std::int64_t> first_with_same_shares(const PlanInputs& inputs);

}  // namespace tessera::plan
