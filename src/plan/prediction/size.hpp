// What a plan costs the host that makes and keeps it.
#pragma once

#include <cstdint>

#include "plan/ir/inputs.hpp"

namespace tessera::plan {

struct PlanSize {
  double operations = 0;
  double bytes = 0;    // of the host's memory
  double seconds = 0;  // to make and prove it, on one thread of this machine
};

/// Bytes of the host's memory that a plan holds: those of its operations and buffers, and of the
/// vectors and texts that these have.
std::int64_t held_bytes(const Plan& plan);

/// The size of one rank's plan of a step. It is made and timed if it is short, or its micro-batches
/// may repeat. Else plans of a few rounds of micro-batches are; a step of more of them has what
/// every further round adds, and each operation takes as long. So it also says what plans would
/// cost that are too long to be made.
PlanSize size_of_step(const PlanInputs& inputs, const PlanShape& shape, const MeshPlace& place);

}  // namespace tessera::plan
