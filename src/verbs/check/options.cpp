// The table of ZeRO's estimators: every stage and offload choice, and what fits.
#include "core/bytes.hpp"
#include "verbs/check/check.hpp"
#include "zero/model_states.hpp"

namespace tessera::verbs {
namespace {

using zero::StateChoice;
using zero::StateTier;

/// In the order in which people try them.
constexpr std::array kOffload = {
    StateChoice{},
    StateChoice{.optimizer = StateTier::host},
    StateChoice{.optimizer = StateTier::host, .gradients = StateTier::host},
    StateChoice{
        .optimizer = StateTier::host, .gradients = StateTier::host, .parameters = StateTier::host},
    StateChoice{.optimizer = StateTier::disk, .gradients = StateTier::host},
    StateChoice{
        .optimizer = StateTier::disk, .gradients = StateTier::host, .parameters = StateTier::disk},
};

/// Bytes of the largest unit's parameters in full: what must be on the device while it computes.
std::int64_t largest_unit(const plan::PlanInputs& in, const MeshPlace& place) {
  std::int64_t most = 0;
  for (const auto& unit : in.model.units) {
    const auto layout = plan::unit_layout(in, unit, place);
    most = std::max(most, layout.padded * size_of(in.numerics.compute));
  }
  return most;
}

/// Bytes on the device: what the plan of a step needs, less the states that are kept elsewhere; if
/// parameters are, plus the unit that computes and those that are on their way.
std::int64_t device_bytes(const plan::PlanInputs& in, const plan::RankFigures& f,
                          const StateChoice& choice) {
  using plan::BufferPurpose;
  std::int64_t bytes = f.ledger.device();
  if (choice.optimizer != StateTier::device) {
    bytes -= f.ledger.of(BufferPurpose::optimizer) + f.ledger.of(BufferPurpose::master);
  }
  if (choice.gradients != StateTier::device) bytes -= f.ledger.of(BufferPurpose::gradients);
  if (choice.parameters != StateTier::device) {
    bytes -= f.ledger.of(BufferPurpose::parameters);
    const bool has_window =
        in.sharded().parameters && f.ledger.of(BufferPurpose::gather_window) > 0;
    if (!has_window) bytes += (1 + in.sharding.prefetch) * largest_unit(in, f.place);
  }
  return bytes;
}

}  // namespace

std::string options_text(const LayoutOptions& layout) {
  std::string text;
  for (int stage = 0; stage < kZeroStages; ++stage) {
    const Checked checked = check_other(layout, {fmt::format("zero.stage={}", stage)});
    const plan::PlanInputs& in = checked.planner.inputs;
    const plan::RankFigures& f = checked.largest_rank();
    const auto budget = device_budget(checked.deck());
    if (stage == 0) {
      text += fmt::format(
          "{} parameters on {} ranks; compute {}, gradients {}{}\n"
          "model states of the rank that holds most, and its device's bytes with activations and "
          "all else\n"
          "{:<6}{:<11}{:<11}{:<11}{:>13}{:>13}{:>13}{:>13}  {:<13}{}\n",
          model::parameter_count(in.model.units), to_string(in.layout.mesh),
          to_string(in.numerics.compute), to_string(in.numerics.accumulate),
          budget ? ", devices of " + human_bytes(*budget) : "", "stage", "optimizer", "gradients",
          "parameters", "device", "host", "disk", "device, all", "fits", "from");
    }
    const auto states =
        zero::model_states(f.elements, in.layout.mesh.data, stage, in.state_types());
    for (StateChoice choice : kOffload) {
      choice.stage = stage;
      const bool built = choice.optimizer == StateTier::device;
      const std::int64_t on_device = states.in(StateTier::device, choice);
      const std::int64_t all = device_bytes(in, f, choice);
      const char* fits = !budget                ? "-"
                         : all <= *budget       ? "yes"
                         : on_device <= *budget ? "states only"
                                                : "no";
      text += fmt::format("{:<6}{:<11}{:<11}{:<11}{:>13}{:>13}{:>13}{:>13}  {:<13}{}\n", stage,
                          enum_word(choice.optimizer), enum_word(choice.gradients),
                          enum_word(choice.parameters), human_bytes(on_device),
                          human_bytes(states.in(StateTier::host, choice)),
                          human_bytes(states.in(StateTier::disk, choice)), human_bytes(all), fits,
                          built ? "a plan" : "formula (offload: not available in this version)");
    }
  }
  return text;
}

}  // namespace tessera::verbs
