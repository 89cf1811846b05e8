// From a model, a layout and a shape to the plan of one rank: a chain of passes, each one idea and
// one file.
#pragma once

#include "plan/ir/inputs.hpp"
#include "plan/passes/state.hpp"

namespace tessera::plan {

/// All passes; the result has passed check().
Plan make_plan(const PlanInputs& inputs, const PlanShape& shape, const MeshPlace& place);
/// Throws DeckError where a step of so many micro-batches is too long for one plan.
void check_length(const PlanInputs& inputs, const PlanShape& shape);
/// The same without check(), which takes half the time: for those who compare many and run none.
Plan unproved_plan(const PlanInputs& inputs, const PlanShape& shape, const MeshPlace& place);

}  // namespace tessera::plan
