// The model as layers, which pipelining places: the embedding, the blocks, the head.
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

/// Flop of a forward of the model's longest sequence, a token, of each layer's products.
std::vector<double> layer_costs(const PlanInputs& inputs);

/// Parts of the layers, one for each chunk of each stage: part v * stages + s is chunk v of stage
/// s. Where the deck does not say, parts cost alike.
std::vector<Range> layer_parts(const PlanInputs& inputs);

/// Whether stage `stage` uses each unit.
std::vector<bool> held_units(const PlanInputs& inputs, std::int64_t stage);

/// Whether the embedding's and the head's use of a tied matrix sum their gradients apart: at two
/// ends of a pipeline, and wherever one stage must give the bits of two.
bool tied_apart(const PlanInputs& inputs);

/// Whether the unit is a tied matrix that both ends of the pipeline hold.
bool on_both_ends(const PlanInputs& inputs, std::size_t unit);

/// Of each tensor rank the first whose shares of all units are as large as its own.
std::vector<std::int64_t> first_with_same_shares(const PlanInputs& inputs);

}  // namespace tessera::plan
