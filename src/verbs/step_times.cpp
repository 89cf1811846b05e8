#include "verbs/step_times.hpp"

#include "plan/prediction/compare.hpp"

namespace tessera::verbs {

std::string ShownTimes::predicted_title() const {
  return fmt::format("predicted for {}: {:.1f} ms, bubble {:.1f}%", machine->name,
                     found->simulation.step * 1e3, 100 * found->bubble);
}

std::string ShownTimes::measured_title() const {
  std::string title =
      fmt::format("measured: {:.1f} ms, step {}, of median length of {} profiled",
                  plan::length_of(measured->ranks) * 1e3, measured->step, measured->of.size());
  if (measured->clock_error > 0)
    title += fmt::format(", clocks known to {:.0f} us", measured->clock_error * 1e6);
  return title;
}

std::vector<plan::Timeline> ShownTimes::timelines(const plan::PlanInputs& inputs,
                                                  const std::string& run) const {
  std::vector<plan::Timeline> all;
  if (found) all.push_back(plan::timeline_of(predicted, inputs, run + predicted_title()));
  if (measured) all.push_back(plan::timeline_of(measured->ranks, inputs, run + measured_title()));
  return all;
}

ShownTimes step_times(const Planner& p, const std::optional<deck::Machine>& machine,
                      const std::optional<std::filesystem::path>& run_directory) {
  ShownTimes t;
  plan::PlanShape shape = p.shapes.front();
  if (run_directory) {
    t.measured = train::read_profile(*run_directory, p.inputs, p.shapes);
    shape = t.measured->shape;
  }
  if (machine) {
    t.machine = machine->multiplying(p.loaded.deck.precision.matmul);
    t.found = plan::predict(plan::simulated_plans(p.inputs, shape), p.inputs, *t.machine);
    t.predicted = timed(*t.found);
  }
  return t;
}

}  // namespace tessera::verbs
