// How a rank leaves when it has failed alone, that is, with an error that the other ranks do not
// know of.
#pragma once

#include <filesystem>
#include <optional>
#include <utility>

#include "train/job.hpp"

namespace tessera::train {

/// Ends this process with the exit code of the exception that is being handled, which is this
/// rank's own. Says why: on stderr, in the run directory's `ended`, and through the watchdog to all
/// ranks. To be called before the stack unwinds, because destructors would wait for ranks that wait
/// for this one.
[[noreturn]] void leave_alone(const Job& job,
                              const std::optional<std::filesystem::path>& run_directory = {});

/// Runs `work`. Rethrows an error that all ranks share (AgreedError). Any other error is this
/// rank's own: reports it and exits at once (leave_alone).
template <typename Work>
auto or_leave_alone(const Job& job, const std::optional<std::filesystem::path>& run_directory,
                    Work&& work) {
  try {
    return work();
  } catch (const AgreedError&) {
    throw;
  } catch (...) {
    leave_alone(job, run_directory);
  }
}

}  // namespace tessera::train
