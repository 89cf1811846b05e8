// From a model, a layout and a shape to the plan of one rank: a chain of passes, each one idea and
// one file.
#pragma once

#include "plan/ir/inputs.hpp"
#include "plan/passes/state.hpp"

namespace tessera::plan {

/// All passes; the result has passed check().
Plan make_plan(const PlanInputs& inputs, const PlanShape& shape, const MeshPlace& place);
/// How often a micro-batch visits a unit in a step of the stage that has most.
std::int64_t visits_of(const PlanInputs& inputs, const PlanShape& shape);
/// Whether a step has too many micro-batches for one plan: making it throws DeckError.
bool is_too_long(const PlanInputs& inputs, const PlanShape& shape);
/// The same without check(), and without waits but where micro-batches repeat: for those who want
/// to know what memory it needs.
Plan placed_plan(const PlanInputs& inputs, const PlanShape& shape, const MeshPlace& place);
/// The plan in which all micro-batches are, without waits and check(): for those who compare many
/// plans of few micro-batches and run none.
Plan whole_plan(const PlanInputs& inputs, const PlanShape& shape, const MeshPlace& place);

}  // namespace tessera::plan
