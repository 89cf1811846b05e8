// What a deck leaves open about ZeRO's traffic, settled when a run starts.
#pragma once

#include <filesystem>
#include <string>

#include "train/execution/engine.hpp"

namespace tessera::train {

struct SettledTraffic {
  std::string what;  // for people, what is chosen and why; empty where nothing is open
  std::string file;  // what to keep for later starts; empty where an earlier one has
  /// On rank 0: of large products of the compute type, of a rank in flop/s; 0: not measured.
  double gemm_rate = 0;
};

/// Settles what is "auto" (setup/traffic.hpp) in the deck of a run in `directory`: as an earlier
/// start has, which is kept there, if the layout and what else the choice hangs on are as they
/// were; else the ranks measure their rates, and the links of rank 0's node and the next, and rank
/// 0 simulates a step in each form. Collective; all ranks get the same. Throws DataError for a file
/// that cannot be understood.
SettledTraffic settle_traffic(deck::LoadedDeck& loaded, const Job& job, const Hardware& hardware,
                              const std::filesystem::path& directory);

/// Keeps the choice for later starts, once the run has its memory. One rank calls it.
void keep_traffic(const SettledTraffic& settled, const std::filesystem::path& directory);

}  // namespace tessera::train
