// How many sequences to go on with at once.
#include "setup/generation.hpp"
#include "core/bytes.hpp"
#include "deck/machine.hpp"
#include "verbs/check/check.hpp"
#include "verbs/simulate/simulate.hpp"

namespace tessera::verbs {
namespace {

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
  Pass pass{.sequences = shapes.front().slots, .seconds = found.simulation.step};
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

/// Throws DeckError for what `generate` would refuse.
void check_generates(const Planner& p, const LayoutOptions& layout) {
  const deck::Deck& deck = p.loaded.deck;
  setup::check_continues(deck.model, deck.task, layout.deck.path);
  deck::LoadedDeck used = p.loaded;
  used.deck.parallel.expert_overlap = false;  // of training
  setup::check_traffic(used, p.node_of);
  if (!p.open.empty()) {
    throw DeckError(fmt::format(
        "{}: --generation: generation measures no links for \"auto\": --set zero.secondary to "
        "\"node\", or to a number of neighbouring data ranks, or to false, and "
        "zero.quantize.weights and .gradients to \"none\"",
        layout.deck.path));
  }
  if (deck.zero.stage == 1 || deck.zero.stage == 2) {
    throw DeckError(
        fmt::format("{}: --generation: zero.stage = {}: without an optimizer a rank has whole "
                    "parameters (--set "
                    "zero.stage=0) or shards (3)",
                    p.loaded.where("zero.stage"), deck.zero.stage));
  }
}

/// Why no more sequences are looked at.
std::string bound_text(const Pass& last, const plan::OffloadInputs& offload) {
  const bool computes = last.computes >= last.seconds / 2,
             over_bus = offload.caches_at() == plan::Location::host;
  return fmt::format(
      "from --batch {} on a pass is bound by {}: more sequences take as much longer\n",
      last.sequences,
      !computes  ? "what ranks send each other for each sequence"
      : over_bus ? "computing, keys and values that come from the host included"
                 : "computing");
}

}  // namespace

std::string generation_text(const LayoutOptions& layout, const std::string& machine_file) {
  const deck::Machine given = deck::load_machine(machine_file);
  const Planner p = make_planner(on_machine(layout, given), true);
  const deck::Machine machine = given.multiplying(p.loaded.deck.precision.matmul);
  check_generates(p, layout);
  const deck::Deck& deck = p.loaded.deck;
  const std::int64_t has = device_memory(deck, machine);
  std::string text = fmt::format(
      "a pass that adds a token to each sequence of a data rank, of {} tokens by then "
      "(batch.sequence), in {} on {}:\n"
      "{:>9}{:>12}{:>12}{:>11}{:>13}{:>13}\n",
      deck.batch.sequence, to_string(p.inputs.numerics.compute), machine.name, "sequences",
      "ms a pass", "tokens/s", "computes", "memory", "of the host");
  std::optional<Pass> last;
  for (std::int64_t n = 1; n <= setup::kMostSequences; n *= 2) {
    const Pass pass = pass_of(p, n, machine);
    if (has > 0 && pass.device > has) {
      return text + fmt::format("{} would need {} of a device's {}: {}\n",
                                count_text(pass.sequences, "sequence"), human_bytes(pass.device),
                                human_bytes(has),
                                last ? "up to what fits, more at once are a gain" : "nothing fits");
    }
    text += text_of(pass, p.inputs.layout.mesh.data);
    if (last && pass.seconds >= kNoGain * last->seconds)
      return text + bound_text(*last, p.inputs.offload);
    last = pass;
  }
  return text + fmt::format("up to {} more at once are a gain{}\n", setup::kMostSequences,
                            has > 0 ? "" : ", if they fit: nothing says how much memory there is");
}

}  // namespace tessera::verbs
