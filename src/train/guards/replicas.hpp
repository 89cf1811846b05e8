// Silent corruption: what several ranks hold copies of must be the same bits on all of them (traps
// 33 and 44).
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

/// Compares all copies: of data ranks, slice by slice of the flat parameters; of tensor ranks, what
/// each holds whole; of tied matrices at both ends of a pipeline. The result is the same on every
/// rank. Of two copies that differ nobody knows which is right; of three or more, the few are
/// named. Where data ranks share out the optimizer's state, tensor ranks and ends compare their
/// shards. Data ranks themselves keep no copies between steps at stage 3; at stages 1 and 2 the
/// owner of a slice is newer than its copies, so that there it takes three of them. Collective.
ReplicaComparison compare_copies(const ModelState& state, const plan::PlanInputs& inputs,
                                 const comm::Control& control);

/// Whether there is anything to compare.
bool keeps_copies(const plan::PlanInputs& inputs);

}  // namespace tessera::train
