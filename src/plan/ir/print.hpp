// Plans for people and programs.
#pragma once

#include <string>

#include "plan/ir/inputs.hpp"

namespace tessera::plan {

/// What an op is, for messages: "update adam of block.3", "kernel linear of block.0, micro-batch
/// 2".
std::string op_name(const Op& op, const PlanInputs& inputs);
/// Of a run of it, which may be for another micro-batch.
std::string op_name(const Op& op, const PlanInputs& inputs, std::int32_t micro_batch);

/// One line an op: index, stream, what it does, bytes or flop, and what it waits for.
std::string to_text(const Plan& plan, const PlanInputs& inputs);
std::string to_json(const Plan& plan, const PlanInputs& inputs);

/// Bytes that the rank sends in one step of the plan, and the step's matrix work.
comm::WireBytes total_wire_bytes(const Plan& plan);
double total_flop(const Plan& plan);

}  // namespace tessera::plan
