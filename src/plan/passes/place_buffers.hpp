// Gives every buffer an offset in its arena. Buffers that do not live at the same time may share
// bytes. All that lives within a step (activations, gradients, gather windows, scratch) shares one
// arena, so its size is the peak of the sum, not the sum of the peaks. Waits are derived afterwards
// (place_waits), from the bytes that buffers got here.
#pragma once

#include "plan/ir/plan.hpp"

namespace tessera::plan {

/// Sets Buffer::offset and Plan::arena_bytes. Persistent buffers lie one after another. The others,
/// the largest first, each take the smallest range that is large enough and free as long as they
/// live. `like`: by buffer, an earlier one of its size in whose range it lies, unless they live at
/// the same time; -1: none. Empty: of none.
void place_buffers(Plan& plan, const std::vector<BufferId>& like = {});

}  // namespace tessera::plan
