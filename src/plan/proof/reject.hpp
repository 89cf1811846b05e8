// How the proof says what is wrong with a plan.
#pragma once

#include <string>

#include "plan/ir/plan.hpp"

namespace tessera::plan {

/// Throws InternalError about op `index`.
[[noreturn]] void reject(const Plan& plan, std::size_t index, const std::string& why);

}  // namespace tessera::plan
