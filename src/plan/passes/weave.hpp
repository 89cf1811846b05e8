// Micro-batches side by side: while tokens of one are on their way to experts and back, the other
// computes (as the two of DeepSeek-V3's DualPipe, DeepSeek-AI 2024, section 3.2.1).
#pragma once

#include "plan/ir/inputs.hpp"
#include "plan/passes/pipeline.hpp"

namespace tessera::plan {

/// Whether micro-batches of such a plan go in pairs.
bool goes_in_pairs(const PlanInputs& inputs, const PlanShape& shape);

/// How many micro-batches a schedule takes before it goes on as it began.
std::int64_t schedule_round(const PlanInputs& inputs);

/// Forward of two micro-batches, then their backward, and so on; a last one may be alone.
std::vector<PipelineAction> paired_actions(std::int64_t micro_batches);

/// The ops of such actions, of which each begins with op number `begins`, pair by pair in turn:
/// an action's turn ends where it has begun an exchange of rows between experts. What the two read
/// of a unit is one visit. Each gradient is added to by one micro-batch after another, as without:
/// only that of a tied matrix gets what the head makes of two, then what the embedding does.
void weave(Plan& plan, const std::vector<std::size_t>& begins);

}  // namespace tessera::plan
