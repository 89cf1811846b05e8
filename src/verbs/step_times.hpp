// A step's times, predicted for a machine and measured by a run, for the verbs that show them.
#pragma once

#include <optional>
#include <string>

#include "deck/machine.hpp"
#include "train/execution/profile.hpp"
#include "verbs/planner.hpp"

namespace tessera::verbs {

/// A step as the machine would take it and as the run took it, either or both.
struct ShownTimes {
  std::optional<deck::Machine> machine;
  std::optional<plan::Prediction> found;
  plan::TimedStep predicted;
  std::optional<train::MeasuredStep> measured;

  std::string predicted_title() const;
  std::string measured_title() const;
  /// For a picture, the predicted one first; titles begin with `run`.
  std::vector<plan::Timeline> timelines(const plan::PlanInputs& inputs,
                                        const std::string& run) const;
};

/// Of a machine, the profile in a run directory, or both: of the same plans then. Throws as
/// read_profile and predict do.
ShownTimes step_times(const Planner& planner, const std::optional<deck::Machine>& machine,
                      const std::optional<std::filesystem::path>& run_directory);

}  // namespace tessera::verbs
