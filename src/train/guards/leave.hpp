// How a rank leaves that has failed alone.
#pragma once

#include <filesystem>
#include <optional>
#include <utility>

#include "train/job.hpp"

namespace tessera::train {

/// Ends this process with the exit code of the exception that is being handled, which no other rank
/// knows of: says why, here, in the run directory's `ended` and through the watchdog to all ranks.
/// Called before anything unwinds: destructors would wait for ranks that wait for this one.
[[noreturn]] void leave_alone(const Job& job,
                              const std::optional<std::filesystem::path>& run_directory = {});

/// Does work for which errors that this rank alone has end its process here; those that all ranks
/// have are thrown.
template <typename Work>
auto or_leave_alone(const Job& job, const std::filesystem::path& run_directory, Work&& work) {
  try {
    return work();
  } catch (const AgreedError&) {
    throw;
  } catch (...) {
    leave_alone(job, run_directory);
  }
}

}  // namespace tessera::train
