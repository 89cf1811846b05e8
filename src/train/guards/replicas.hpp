// Finds silent corruption: copies of the same elements on several ranks must have the same bits
// (traps 33 and 44 in tests/README.md).
#pragma once

#include <optional>
#include <string>

#include "comm/mpi/control.hpp"
#include "train/state/model_state.hpp"

namespace tessera::train {

struct ReplicaComparison {
  std::int64_t elements = 0;  // of which several ranks' copies were compared, each counted once
  std::optional<std::string> difference;  // who differs, and in which units
};

/// Compares all copies: between data ranks, slice by slice of the flat parameters; between tensor
/// ranks, what each holds whole; between the two ends of a pipeline, tied matrices. The result is
/// the same on every rank. If two copies differ nobody knows which is right; of three or more,
/// those that differ from the majority are named. At ZeRO stages 1 to 3, tensor ranks and ends
/// compare their shards. Data ranks keep no copies between steps at stage 3; at stages 1 and 2 the
/// owner of a slice is newer than its copies and is left out, so that at least three data ranks are
/// needed. Collective.
ReplicaComparison compare_copies(const ModelState& state, const plan::PlanInputs& inputs,
                                 const comm::Control& control);

/// Whether there is anything to compare.
bool keeps_copies(const plan::PlanInputs& inputs);

}  // namespace tessera::train
