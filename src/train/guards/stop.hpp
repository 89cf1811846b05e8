// Requests to stop: signals, time limit, deadline, a file named "stop" in the run directory.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "deck/deck.hpp"

namespace tessera::train {

/// Catches SIGTERM, SIGUSR1, SIGHUP (unless it is ignored, as under nohup) and SIGINT (the second
/// SIGINT ends the process at once); has SIGPIPE ignored. Call once, before threads start.
void catch_stop_signals();

/// In the run directory.
inline constexpr const char* kStopFile = "stop";

class StopRequests {
 public:
  /// Only the rank that `leads` looks for the stop file and compares its clock with the deadline:
  /// clocks of nodes differ, and a file system need not answer every rank at every step.
  StopRequests(const deck::RunSection& run, const std::filesystem::path& directory, bool leads);
  /// Why this rank wants to stop, if it does. ahead_s: what one more step and its checkpoint would
  /// take; they must be over by the deadline. Ranks may disagree: the loop sums their wishes before
  /// it acts.
  std::optional<std::string> reason(double ahead_s) const;
  /// Takes the stop file away, so that the next job goes on. Called by one rank, once all have
  /// stopped. Returns whether there was one.
  bool obeyed() const;

 private:
  bool stop_file_there() const;

  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::optional<std::int64_t> time_limit_, deadline_;
  std::filesystem::path stop_file_;  // empty: another rank looks for it
};

}  // namespace tessera::train
