#include "setup/judges.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/sharding.hpp"
#include "deck/deck_checker.hpp"
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

namespace {

/// The least that a deck of a model with one output says of itself. `key` names the directory.
deck::Deck least_judge(const deck::LoadedDeck& loaded, const std::string& key,
                       const std::string& directory, std::int64_t ranks) {
  // Whole pairs are what such a deck has; how many answers are judged at once its plans say.
  const std::string least = fmt::format(
      "run.steps = 1\nmodel.init_from = {}\ntask.kind = \"reward\"\ndata.train = [\"none\"]\n"
      "batch.micro = 2\nbatch.global = {}\noptimizer.lr = 1.0\n",
      deck::value_text(deck::Value(directory)), 2 * ranks);
  const deck::Deck& run = loaded.deck;
  deck::Deck judge = deck::parse_deck(least, key, {}, read_architecture).deck;
  if (judge.model.context < run.batch.sequence) {
    throw DeckError(fmt::format("{}: it sees {} tokens, but batch.sequence = {}: give less", key,
                                judge.model.context, run.batch.sequence));
  }
  judge.run.backend = run.run.backend;
  judge.run.threads = run.run.threads;
  judge.run.seed = run.run.seed;
  judge.run.reproducible = run.run.reproducible;
  judge.run.reproducible_tensor = run.run.reproducible_tensor;
  judge.run.resume = deck::Resume::never;
  judge.precision = run.precision;
  judge.memory = run.memory;
  judge.batch.sequence = run.batch.sequence;
  judge.model.accept_non_finite = run.model.accept_non_finite;
  return judge;
}

deck::LoadedDeck checked(const deck::Deck& judge, const std::string& name, std::int64_t ranks) {
  deck::LoadedDeck loaded =
      deck::parse_deck(to_toml(judge), name, std::vector<std::string>(), read_architecture);
  check_on_ranks(loaded, ranks);
  return loaded;
}

}  // namespace

deck::LoadedDeck reward_deck(const deck::LoadedDeck& loaded, std::int64_t ranks) {
  const deck::Deck& run = loaded.deck;
  const std::string name =
      fmt::format("{}: reward.model {} on its layout", loaded.name, *run.reward.model);
  deck::Deck judge = least_judge(loaded, name, *run.reward.model, ranks);
  if (judge.model.init_head == HeadWeights::fresh) {
    throw DeckError(fmt::format(
        "{}: it has no head that scores: train it with task.kind = \"reward\", and export it",
        name));
  }
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
  return checked(judge, name, ranks);
}

deck::LoadedDeck critic_deck(const deck::LoadedDeck& loaded, std::int64_t ranks) {
  const deck::Deck& run = loaded.deck;
  const std::string name =
      fmt::format("{}: task.critic {} on its layout", loaded.name, *run.task.critic);
  deck::Deck critic = least_judge(loaded, name, *run.task.critic, ranks);
  deck::ModelSection& model = critic.model;
  model.dropout = model.dropout_embedding = model.dropout_attention = model.dropout_residual = 0;
  critic.run.steps = run.run.steps;
  critic.run.tokens = run.run.tokens;
  critic.run.epochs = run.run.epochs;
  critic.parallel = run.parallel;
  critic.parallel.data = 0;  // the rest, as of the run
  critic.parallel.context = 1;
  critic.parallel.context_kind = ContextKind::automatic;
  if (model.moe.experts == 0) {
    const deck::ParallelSection unset;
    critic.parallel.experts = unset.experts;
    critic.parallel.expert_exchange = unset.expert_exchange;
    critic.parallel.expert_overlap = unset.expert_overlap;
  }
  critic.recompute = run.recompute;
  critic.zero = run.zero;
  critic.offload = run.offload;
  critic.optimizer = run.optimizer;
  critic.optimizer.lr = *run.task.critic_lr;
  critic.optimizer.groups.clear();
  critic.optimizer.ema.reset();
  critic.schedule = run.schedule;
  const double times = critic.optimizer.lr / run.optimizer.lr;
  critic.schedule.min_lr *= times;
  critic.schedule.warmup_start_lr *= times;
  deck::LoadedDeck made = checked(critic, name, ranks);
  // What it learns is no pairs, whose losses are of whole sequences, nor in files.
  deck::Deck& values = made.deck;
  values.parallel.context = run.parallel.context;
  values.parallel.context_kind = run.parallel.context_kind;
  values.run.reproducible_context = run.run.reproducible_context;
  values.task = {.kind = deck::TaskKind::values, .pooling = Pooling::none};
  values.task.mean = run.task.mean;
  values.task.value_clip = run.task.value_clip;
  values.rollout = run.rollout;
  values.data = run.data;
  values.batch = run.batch;
  values.checkpoint = run.checkpoint;
  deck::Problems problems;
  check_context(made, problems);
  problems.throw_if_any();
  return made;
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
