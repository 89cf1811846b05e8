#pragma once

#include <chrono>
#include <filesystem>

#include "train/job.hpp"

namespace tessera::train {

/// Starts the job's watchdog on every rank, unless it has run already, there is one rank, or
/// `hang_timeout` is 0; what it finds goes into log.txt and logbook.md of the run `directory`.
/// Collective. Throws CommError on every rank when ranks cannot reach their
/// neighbours.
void watch_peers(const Job& job, std::chrono::seconds hang_timeout,
                 const std::filesystem::path& directory);

}  // namespace tessera::train
