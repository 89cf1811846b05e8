// Work with each of its allocations refused once.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <string>

#include "core/ending.hpp"
#include "support/failing_calls.hpp"

namespace tessera::test {

/// Libraries that parse text leave a little behind: libstdc++ where it reads a number, nlohmann's
/// JSON where it makes a value.
enum class Leaks : std::uint8_t { none, of_libraries };

/// Does `work` with its first, second, ... allocation refused, until none is left: each time it
/// ends as a MemoryError does, or with the very result that it has otherwise, and gives back all
/// that it took. Returns how many allocations there are.
inline std::int64_t refuse_every_allocation(const std::function<std::string()>& work,
                                            Leaks leaks = Leaks::none) {
  std::string right = work();  // what is made once in a process is made here
  for (std::int64_t n = 0;; ++n) {
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
    if (leaks == Leaks::none) {
      EXPECT_EQ(live_allocations(), before) << "allocation " << n << " leaves something behind";
    }
    if (!refused || testing::Test::HasFailure()) return n;
  }
}

/// The same for work whose libraries may end the process, each time in a process of its own that
/// is prepared for that as the program is.
inline std::int64_t refuse_every_allocation_apart(const std::function<std::string()>& work) {
  const std::string right = work();
  for (std::int64_t n = 0;; ++n) {
    const pid_t child = ::fork();
    if (child == 0) {
      [[maybe_unused]] const int silent = ::open("/dev/null", O_WRONLY);
      ::dup2(silent, STDERR_FILENO);
      end_where_memory_runs_out();
      int code = 1;  // a wrong result
      refuse_allocation({.first = n});
      try {
        const std::string got = work();
        const bool refused = allocation_was_refused();
        refuse_allocation({});
        if (got == right) code = refused ? 0 : 99;
      } catch (...) {
        refuse_allocation({});
        code = static_cast<int>(current_ending().code);
      }
      ::_exit(code);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 99) return n;
    EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 0 ||
                                      WEXITSTATUS(status) == static_cast<int>(ExitCode::memory)))
        << "allocation " << n << ": status " << status;
    if (testing::Test::HasFailure()) return n;
  }
}

}  // namespace tessera::test
