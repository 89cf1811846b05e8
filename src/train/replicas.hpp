// Silent corruption: what several ranks hold copies of must be the same bits on all of them (traps
// 33 and 44).
#pragma once

#include <optional>
#include <string>

#include "comm/mpi/mpi_group.hpp"
#include "train/model_state.hpp"

namespace tessera::train {

/// Compares all copies: of data ranks, slice by slice of the flat parameters; of tensor ranks, what
/// each holds whole; of tied matrices at both ends of a pipeline. Returns who differs and in which
/// units, the same on every rank, or nothing. Of two copies that differ nobody knows which is
/// right; of three or more, the few are named. Stage 3 keeps no copies between steps; at stages 1
/// and 2 the owner of a slice is newer than its copies, so that there it takes three data ranks to
/// compare, and copies of tensor ranks and ends are not compared. Collective.
std::optional<std::string> find_differing_replicas(const ModelState& state,
                                                   const plan::PlanInputs& inputs,
                                                   const comm::Control& control);

}  // namespace tessera::train
