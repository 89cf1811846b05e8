// When a plan needs the bytes of its buffers.
#pragma once

#include <limits>
#include <vector>

#include "plan/ir/plan.hpp"

namespace tessera::plan {

/// The first and the last op during which a buffer's bytes must not be used for anything else.
struct Life {
  std::int64_t begin = std::numeric_limits<std::int64_t>::max();
  std::int64_t end = -1;
};
std::vector<Life> buffer_lives(const Plan& plan);

/// By buffer, the first op that uses it; -1: none does.
std::vector<OpId> births(const Plan& plan);

}  // namespace tessera::plan
