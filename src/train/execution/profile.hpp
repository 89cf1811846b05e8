// Profiles of steps in a run directory: when each op of each rank really ran. What a run with
// log.profile writes and `plan --profile` reads.
//
// profile/rank_NNNNN.jsonl has a line a profiled step, appended also after restarts:
//     {"format":1, "step":5, "id":"...", "rank":0, "nodes":1,
//      "mesh":{"data":2,"pipeline":1,"tensor":2}, "plan":"16 hex digits",
//      "at_us":..., "us":..., "clock_error_us":..., "stream":[...], "begin_us":[...],
//      "end_us":[...]}
// The last three have an entry an op of the rank's plan, in its order, in microseconds since at_us,
// when the rank's step began by rank 0's clock. `id` is the same on all ranks and never comes
// again: of a step that was done again, the last one counts that all ranks have. `plan` is a hash
// of the ops with their operands' shapes.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <span>

#include "deck/deck.hpp"
#include "plan/prediction/timeline.hpp"
#include "train/execution/executor.hpp"
#include "train/job.hpp"
#include "train/report/run_directory.hpp"

namespace tessera::train {

/// One rank's step, by its own clock and what that is ahead of rank 0's.
struct ProfiledStep {
  std::int64_t step = 0;
  std::string id;
  comm::ClockOffset clock;
  StepProfile times;
};
/// The line of a step that ran this plan, which is of these inputs.
std::string profile_line(const ProfiledStep& profiled, const plan::Plan& plan,
                         const plan::PlanInputs& inputs);

/// The run's side. Its calls are collective.
class Profiler {
 public:
  Profiler(const deck::LogSection& log, const Job& job, const plan::PlanInputs& inputs,
           const std::filesystem::path& directory);

  /// What the executor is to fill in this step; nullptr where the step is not profiled. Measures
  /// how far this node's clock is ahead of rank 0's.
  StepProfile* begin(std::int64_t step);
  /// Writes what was filled while this plan ran. Throws on all ranks alike.
  void write(const plan::Plan& plan);

 private:
  comm::ClockOffset clock_offset() const;

  std::optional<std::array<std::int64_t, 2>> steps_;
  const Job& job_;
  const plan::PlanInputs& inputs_;
  std::filesystem::path directory_;
  std::optional<LineFile> file_;
  ProfiledStep now_;
};

/// One of a profile's steps.
struct MeasuredStep {
  std::int64_t step = 0;
  std::vector<std::int64_t> of;  // the steps of this plan that all ranks have, ascending
  plan::PlanShape shape;
  plan::TimedStep ranks;
  double clock_error = 0;  // seconds; the most of any rank
};

/// Of the steps that ran the first plan of `shapes` that any ran, the one of median length. Of all
/// ranks where they are few, of the simulated places where not. Throws DeckError where the run was
/// not profiled or its profile is of other plans than these, DataError naming file, line and place
/// where it cannot be read.
MeasuredStep read_profile(const std::filesystem::path& run_directory,
                          const plan::PlanInputs& inputs, std::span<const plan::PlanShape> shapes);

}  // namespace tessera::train
