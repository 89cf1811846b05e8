#include "train/start_times.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace tessera::train {

void StartTimes::ended(StartStage stage) {
  const auto now = SteadyClock::now();
  add(stage, std::chrono::duration<double>(now - std::exchange(last_, now)).count());
}

void StartTimes::add(const StartTimes& since) {
  for (const auto& [stage, word] : EnumWords<StartStage>::table) add(stage, since.of(stage));
  last_ = SteadyClock::now();
}

double StartTimes::total() const {
  double all = 0;
  for (const auto& [stage, word] : EnumWords<StartStage>::table) all += of(stage);
  return all;
}

std::string StartTimes::text() const {
  std::vector<std::string> stages;
  for (const auto& [stage, word] : EnumWords<StartStage>::table)
    stages.push_back(fmt::format("{} {:.2f}", word, of(stage)));
  return fmt::format("{:.2f} s: {}", total(), fmt::join(stages, ", "));
}

}  // namespace tessera::train
