// The table of ZeRO's estimators: every stage and offload choice, and what fits.
#include "core/bytes.hpp"
#include "deck/presets.hpp"
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

std::string_view word_of(StateTier tier) {
  return tier == StateTier::device ? "none" : enum_word(tier);
}

bool on_disks(const StateChoice& choice) {
  return choice.optimizer == StateTier::disk || choice.gradients == StateTier::disk ||
         choice.parameters == StateTier::disk;
}

/// The deck's keys for a choice.
std::vector<std::string> sets_of(const StateChoice& choice) {
  std::vector<std::string> sets = {fmt::format("zero.stage={}", choice.stage),
                                   fmt::format("offload.optimizer={}", word_of(choice.optimizer)),
                                   fmt::format("offload.gradients={}", word_of(choice.gradients)),
                                   fmt::format("offload.parameters={}", word_of(choice.parameters)),
                                   "offload.optimizer_share=1"};  // as in the formulas
  if (on_disks(choice)) sets.emplace_back("offload.nvme=[\"DIRECTORY\"]");
  return sets;
}

}  // namespace

std::string options_text(const LayoutOptions& layout) {
  std::string text;
  std::int64_t stages = 1;  // of the deck's optimizer
  for (int stage = 0; stage < stages; ++stage) {
    for (StateChoice choice : kOffload) {
      choice.stage = stage;
      const Checked checked = check_other(layout, sets_of(choice));
      stages = deck::zero_stages(checked.deck().optimizer.name);
      const plan::PlanInputs& in = checked.planner.inputs;
      const plan::RankFigures& f = checked.largest_rank();
      const auto budget = device_budget(checked.deck());
      if (text.empty()) {
        text += fmt::format(
            "{} parameters on {} ranks; compute {}, gradients {}{}\n"
            "model states of the rank that holds most, by formula; and all bytes of its plans, "
            "with "
            "activations and all else\n"
            "{:<6}{:<11}{:<11}{:<11}{:>13}{:>13}{:>13}{:>13}{:>13}{:>13}  {}\n",
            model::parameter_count(in.model.units), to_string(in.layout.mesh),
            to_string(in.numerics.compute), to_string(in.numerics.accumulate),
            budget ? ", devices of " + human_bytes(*budget) : "", "stage", "optimizer", "gradients",
            "parameters", "device", "host", "disk", "device, all", "host, all", "disk, all",
            "fits");
      }
      const auto states = zero::model_states(f.elements, stage, in.state_types());
      const std::int64_t on_device = states.in(StateTier::device, choice), all = f.ledger.device();
      const char* fits = !budget                ? "-"
                         : all <= *budget       ? "yes"
                         : on_device <= *budget ? "states only"
                                                : "no";
      text += fmt::format("{:<6}{:<11}{:<11}{:<11}{:>13}{:>13}{:>13}{:>13}{:>13}{:>13}  {}\n",
                          stage, enum_word(choice.optimizer), enum_word(choice.gradients),
                          enum_word(choice.parameters), human_bytes(on_device),
                          human_bytes(states.in(StateTier::host, choice)),
                          human_bytes(states.in(StateTier::disk, choice)), human_bytes(all),
                          human_bytes(f.ledger.host()), human_bytes(f.ledger.disk()), fits);
    }
  }
  return text;
}

}  // namespace tessera::verbs
