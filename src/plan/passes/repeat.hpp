// A long step as a few micro-batches, of which some repeat: once a step is under way, every few
// micro-batches do the same at the same addresses. Its plan is then as small as that of a short
// one, and a GPU launches one captured graph again and again (streams/cuda).
#pragma once

#include <optional>

#include "plan/ir/inputs.hpp"

namespace tessera::plan {

/// The least that repeats, in micro-batches: eight, or twice as many as are under way in a
/// pipeline. Where a part that is captured ends all streams wait for each other: for so long they
/// run beside one another.
std::int64_t least_repeated(const PlanInputs& inputs);

/// How many micro-batches the plan of a step has at first, whose other ones may repeat; nothing
/// where all are there: the step is short, in layout mode, where gradients are added in a tree over
/// all of them, of GPipe's schedule, where all forwards come first, or leaves something of each
/// micro-batch for the host to read.
std::optional<std::int64_t> scheduled_at_first(const PlanInputs& inputs, const PlanShape& shape);

/// What repeats of a complete plan of some of the step's micro-batches: the fewest of them, between
/// `least` and `most`. Nothing where no such part is there twice.
std::optional<Repeat> find_repeat(const Plan& plan, std::int64_t least, std::int64_t most);

/// By buffer, that which is used in the same way `least` micro-batches before, or more, where the
/// schedule comes round after others only; -1 where there is none. Buffers that lie where those lay
/// make a plan repeat (place_buffers).
std::vector<BufferId> counterparts(const Plan& plan, std::int64_t least);

/// Whether the schedule of all micro-batches is that of the scheduled ones with the repeated part
/// as often as it must be.
bool goes_on_alike(const PlanInputs& inputs, const Plan& plan, const Repeat& repeat);

}  // namespace tessera::plan
