#include "setup/judges.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/sharding.hpp"
#include "deck/schema.hpp"
#include "deck/value.hpp"
#include "setup/architecture.hpp"
#include "setup/products.hpp"
#include "setup/shapes.hpp"

namespace tessera::setup {

deck::LoadedDeck reference_deck(const deck::LoadedDeck& loaded) {
  deck::LoadedDeck reference = loaded;
  reference.deck.run.resume = deck::Resume::never;
  if (deck::draws_answers(loaded.deck.task.kind))  // of which it says how likely they are
    reference.deck.task.kind = deck::TaskKind::lm;
  return reference;
}

deck::LoadedDeck reward_deck(const deck::LoadedDeck& loaded, std::int64_t ranks) {
  const deck::Deck& run = loaded.deck;
  const std::string name =
      fmt::format("{}: reward.model {} on its layout", loaded.name, *run.reward.model);
  // Whole pairs are what such a deck has; how many answers are judged at once its plans say.
  const std::string least = fmt::format(
      "run.steps = 1\nmodel.init_from = {}\ntask.kind = \"reward\"\ndata.train = [\"none\"]\n"
      "batch.micro = 2\nbatch.global = {}\noptimizer.lr = 1.0\n",
      deck::value_text(deck::Value(*run.reward.model)), 2 * ranks);
  deck::Deck judge = deck::parse_deck(least, name, {}, read_architecture).deck;
  if (judge.model.init_head == HeadWeights::fresh) {
    throw DeckError(fmt::format(
        "{}: it has no head that scores: train it with task.kind = \"reward\", and export it",
        name));
  }
  if (judge.model.context < run.batch.sequence) {
    throw DeckError(fmt::format("{}: it sees {} tokens, but batch.sequence = {}: give less", name,
                                judge.model.context, run.batch.sequence));
  }
  judge.run.backend = run.run.backend;
  judge.run.threads = run.run.threads;
  judge.run.seed = run.run.seed;
  judge.run.reproducible = run.run.reproducible;
  judge.run.reproducible_tensor = run.run.reproducible_tensor;
  judge.precision = run.precision;
  judge.memory = run.memory;
  judge.parallel.tensor = run.parallel.tensor;
  judge.parallel.pipeline = run.parallel.pipeline;
  judge.parallel.ranks_per_node = run.parallel.ranks_per_node;
  judge.zero.stage = run.zero.stage >= first_stage(&Sharding::parameters) ? run.zero.stage : 0;
  judge.zero.prefetch = run.zero.prefetch;
  judge.offload.parameters = run.offload.parameters;
  judge.offload.nvme = run.offload.nvme;
  if (judge.offload.anything()) judge.offload.ahead = run.offload.ahead;
  judge.offload.block = run.offload.block;
  judge.offload.depth = run.offload.depth;
  judge.batch.sequence = run.batch.sequence;
  judge.model.accept_non_finite = run.model.accept_non_finite;
  judge.run.resume = deck::Resume::never;
  deck::LoadedDeck checked =
      deck::parse_deck(to_toml(judge), name, std::vector<std::string>(), read_architecture);
  check_on_ranks(checked, ranks);
  return checked;
}

plan::PlanShape score_shape(const deck::Deck& deck, plan::Scores scores, std::int64_t data_ranks) {
  plan::PlanShape shape = evaluation_shape(deck.batch, data_ranks);
  shape.micro_batches = std::max<std::int64_t>(1, shape.micro_batches);
  shape.scores = scores;
  shape.of_targets = scores == plan::Scores::outputs;
  return shape;
}

plan::PlanShape base_shape(const deck::Deck& deck, std::int64_t data_ranks) {
  plan::PlanShape shape = score_shape(deck, plan::Scores::losses, data_ranks);
  shape.adapted = false;
  return shape;
}

}  // namespace tessera::setup
