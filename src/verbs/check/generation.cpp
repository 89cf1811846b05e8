// How many sequences to go on with at once.
#include "setup/generation.hpp"
#include "core/bytes.hpp"
#include "deck/machine.hpp"
#include "verbs/check/check.hpp"
#include "verbs/simulate/simulate.hpp"

namespace tessera::verbs {
namespace {

constexpr std::int64_t kMostSequences = 4096;  // of a data rank, as generate --batch has it
/// Twice the sequences in as many times as long are hardly a gain any more.
constexpr double kNoGain = 1.8;

/// A pass that adds a token to each of so many sequences of a data rank.
struct Pass {
  std::int64_t sequences = 0;
  double seconds = 0, computes = 0;   // computes: of the rank that does so longest
  std::int64_t device = 0, host = 0;  // bytes of a rank, prompts' passes included
};

Pass pass_of(const Planner& p, std::int64_t sequences, const deck::Machine& machine) {
  const deck::Deck& deck = p.loaded.deck;
  const auto shapes =
      setup::generation_shapes(deck, setup::decoder_size(deck, sequences, deck.batch.sequence));
  const plan::PlanInputs in = p.inputs_of(deck, shapes);
  const plan::Prediction found =
      plan::predict(plan::simulated_plans(in, shapes.front()), in, machine);
  Pass pass{.sequences = sequences, .seconds = found.simulation.step};
  for (const plan::SimulatedRank& r : found.simulation.ranks)
    pass.computes = std::max(pass.computes, r.compute);
  for (const plan::ArenaBytes& arenas : setup::largest_arenas(in, shapes)) {
    pass.device = std::max(pass.device, plan::device_bytes(arenas));
    pass.host = std::max(pass.host, plan::host_bytes(arenas));
  }
  return pass;
}

std::string text_of(const Pass& pass, std::int64_t data_ranks) {
  return fmt::format(
      "{:>9}{:>12.1f}{:>12.4g}{:>10.0f}%{:>13}{:>13}\n", pass.sequences, pass.seconds * 1e3,
      static_cast<double>(pass.sequences * data_ranks) / pass.seconds,
      100 * pass.computes / pass.seconds, human_bytes(pass.device), human_bytes(pass.host));
}

}  // namespace

std::string generation_text(const LayoutOptions& layout, const std::string& machine_file) {
  const deck::Machine machine = deck::load_machine(machine_file);
  Planner p = make_planner(on_machine(layout, machine));
  const deck::Deck& deck = p.loaded.deck;
  setup::check_continues(deck.model, deck.task, layout.deck.path);
  settle_traffic(p, machine);
  const std::int64_t has = device_memory(deck, machine),
                     data_ranks = p.inputs.layout.mesh.batch_ranks();
  std::string text = fmt::format(
      "a pass that adds a token to each sequence of a data rank, of {} tokens by then, on {}:\n"
      "{:>9}{:>12}{:>12}{:>11}{:>13}{:>13}\n",
      deck.batch.sequence, machine.name, "sequences", "ms a pass", "tokens/s", "computes", "memory",
      "of the host");
  std::optional<Pass> last;
  for (std::int64_t n = 1; n <= kMostSequences; n *= 2) {
    const Pass pass = pass_of(p, n, machine);
    text += text_of(pass, data_ranks);
    if (has > 0 && pass.device > has) {
      return text + fmt::format("{} do not fit a device's {}; fewer gain from each sequence more\n",
                                count_text(n, "sequence"), human_bytes(has));
    }
    if (last && pass.seconds >= kNoGain * last->seconds) {
      return text + fmt::format(
                        "from --batch {} on a pass is bound by computing: more sequences take as "
                        "much longer\n",
                        last->sequences);
    }
    last = pass;
  }
  return text + fmt::format("up to {} each sequence more is a gain\n", kMostSequences);
}

}  // namespace tessera::verbs
