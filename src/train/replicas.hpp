// Silent corruption: what data ranks hold copies of must be the same bits on all of them.
#pragma once

#include <optional>
#include <string>

#include "comm/mpi/mpi_group.hpp"
#include "train/model_state.hpp"

namespace tessera::train {

/// Compares all copies, slice by slice of the flat parameters. Returns who differs and in which
/// units, the same on every rank, or nothing. Of two copies that differ nobody knows which is
/// right; of three or more, the few are named. Stage 3 keeps no copies between steps; at stages 1
/// and 2 the owner of a slice is newer than its copies, so that there it takes three data ranks to
/// compare. Collective.
std::optional<std::string> find_differing_replicas(const ModelState& state,
                                                   const plan::PlanInputs& inputs,
                                                   const comm::Control& control);

}  // namespace tessera::train
