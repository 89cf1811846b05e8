// Starts the watchdog of a job.
#pragma once

#include <filesystem>

#include "deck/load.hpp"
#include "train/job.hpp"

namespace tessera::train {

/// Starts the job's watchdog on every rank, unless it has run already, there is one rank, or
/// guard.hang_timeout is 0; what it finds goes into log.txt and logbook.md of the run `directory`.
/// Collective. Throws CommError on every rank when ranks cannot reach their neighbours, DeckError
/// when a host has no network that guard.interface names.
void watch_peers(const deck::LoadedDeck& loaded, const Job& job,
                 const std::filesystem::path& directory);

}  // namespace tessera::train
