// The largest single allocation of the test program since the last reset.
#pragma once

#include <cstddef>

namespace tessera::test {

void reset_largest_allocation();
std::size_t largest_allocation();

}  // namespace tessera::test
