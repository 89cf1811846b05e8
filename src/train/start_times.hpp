// What the stages of a start take, on one rank: most of them are collective, so that others take as
// long.
#pragma once

#include <string>

#include "core/clock.hpp"
#include "core/enum_array.hpp"
#include "core/enums.hpp"

namespace tessera::train {

enum class StartStage : std::uint8_t {
  mpi,         // MPI, and what watches the ranks
  data,        // token files, and their tokenizers
  device,      // its libraries and streams
  traffic,     // to measure links and rates for what the deck leaves open
  groups,      // communicators of the groups of ranks
  plans,       // made and proved
  memory,      // arenas
  tuning,      // of matrix products and attention
  parameters,  // made or loaded, with the optimizer's state
  other,
};
inline constexpr std::size_t kStartStages = 10;

class StartTimes {
 public:
  /// The time since the stage before ended was this stage's.
  void ended(StartStage stage);
  void add(StartStage stage, double seconds) { seconds_[stage] += seconds; }
  /// Stages that have passed since the last one here ended.
  void add(const StartTimes& since);

  double of(StartStage stage) const { return seconds_[stage]; }
  double total() const;
  /// "3.2 s: MPI 0.1, data 0.0, .."
  std::string text() const;

 private:
  SteadyClock::time_point last_ = SteadyClock::now();
  EnumArray<StartStage, double, kStartStages> seconds_{};
};

}  // namespace tessera::train

template <>
struct tessera::EnumWords<tessera::train::StartStage> {
  using S = tessera::train::StartStage;
  static constexpr std::array table = {std::pair{S::mpi, "MPI"},
                                       std::pair{S::data, "data"},
                                       std::pair{S::device, "device"},
                                       std::pair{S::traffic, "traffic"},
                                       std::pair{S::groups, "groups"},
                                       std::pair{S::plans, "plans"},
                                       std::pair{S::memory, "memory"},
                                       std::pair{S::tuning, "tuning"},
                                       std::pair{S::parameters, "parameters"},
                                       std::pair{S::other, "other"}};
};
