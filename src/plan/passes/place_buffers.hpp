// Lifetimes to slots: which bytes of its arena each buffer occupies while it lives. Waits are
// placed after that, from the bytes themselves: so a slot's next buffer is kept in order behind the
// last by the very mechanism that orders producers and consumers, and no wait is added for a slot
// that is not used again.
#pragma once

#include <limits>
#include <vector>

#include "plan/ir/plan.hpp"

namespace tessera::plan {

/// The ops between which a buffer holds bytes that matter.
struct Life {
  std::int64_t begin = std::numeric_limits<std::int64_t>::max();
  std::int64_t end = -1;
};
std::vector<Life> buffer_lives(const Plan& plan);
/// Fills offsets and arena sizes. What persists lies one after another; what lives within a step
/// takes, in order of birth, the smallest free stretch that it fits.
void place_buffers(Plan& plan);

}  // namespace tessera::plan
