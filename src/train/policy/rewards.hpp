// What says how good answers are.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/mpi/control.hpp"
#include "core/program.hpp"
#include "data/prompts.hpp"
#include "deck/deck.hpp"

namespace tessera::train {

/// Squares of differences of larger rewards would be no numbers that training can go on with.
inline constexpr double kLargestReward = 1e15;

class Rewards {
 public:
  /// Starts the program of reward.command, if answers are its to judge, on each rank. Collective.
  /// IoError, on every rank, where it cannot be started.
  Rewards(const deck::RewardSection& section, const comm::Control& control);

  struct Asked {
    const data::Prompts::Prompt* prompt = nullptr;
    std::string_view answer;
  };
  /// IoError and DataError where the program fails or says no number.
  std::vector<double> of(std::span<const Asked> answers);

 private:
  std::vector<double> ask(std::span<const Asked> answers);

  const deck::RewardSection& section_;
  std::unique_ptr<Program> program_;
};

}  // namespace tessera::train
