// Work with each of its allocations refused once.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "core/ending.hpp"
#include "support/failing_calls.hpp"

namespace tessera::test {

/// Does `work` with its first, second, ... allocation refused, until none is left: each time it
/// ends as a MemoryError does, or with the very result that it has otherwise, and gives back all
/// that it took. Returns how many allocations there are. `stride`: of work that has very many,
/// every so many.
inline std::int64_t refuse_every_allocation(const std::function<std::string()>& work,
                                            std::int64_t stride = 1) {
  std::string right = work();  // what is made once in a process is made here
  for (std::int64_t n = 0;; n += stride) {
    const std::int64_t before = live_allocations();
    bool refused = false;
    {
      std::string got;
      Ending ending;
      refuse_allocation({.first = n});
      try {
        got = work();
        refused = allocation_was_refused();
        refuse_allocation({});
        EXPECT_EQ(got, right) << "allocation " << n << " was refused without a word";
      } catch (...) {
        refused = allocation_was_refused();
        refuse_allocation({});
        ending = current_ending();
        EXPECT_TRUE(refused) << ending.message;
        EXPECT_EQ(ending.code, ExitCode::memory) << "allocation " << n << ": " << ending.message;
      }
    }
    EXPECT_EQ(live_allocations(), before) << "allocation " << n << " leaves something behind";
    if (!refused || testing::Test::HasFailure()) return n;
  }
}

}  // namespace tessera::test
