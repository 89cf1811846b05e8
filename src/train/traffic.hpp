// What a deck leaves open about ZeRO's traffic, settled when a run starts.
#pragma once

#include <filesystem>
#include <string>

#include "train/execution/engine.hpp"

namespace tessera::train {

/// Settles what is "auto" (setup/traffic.hpp) in the deck of a run in `directory`: as an earlier
/// start has, which is kept there in traffic.json, if ranks and nodes are as they were; else the
/// ranks measure their rates, and the links between rank 0's node and the next, and rank 0
/// simulates a step in each form and keeps the choice. Returns what to tell people, on rank 0;
/// empty where nothing is open. Collective. Throws DataError for a file that cannot be understood.
std::string settle_traffic(deck::LoadedDeck& loaded, const Job& job, const Hardware& hardware,
                           const std::filesystem::path& directory);

}  // namespace tessera::train
