#include "train/policy/actor.hpp"

#include <algorithm>
#include <set>
#include <string>

#include "core/bytes.hpp"

namespace tessera::train {
namespace {

GeneratorOptions options_of(const deck::Deck& deck, const plan::PlanInputs& inputs) {
  return {.type = inputs.numerics.compute,
          .slots = deck.rollout.slots,
          .most = deck.batch.sequence,
          .most_head_dim = backend::most_head_dim(deck.run.backend)};
}

std::set<std::string> names_of_trained(const Run& run) {
  std::set<std::string> names;
  for (const model::UnitDesc& unit : run.engine->inputs().model.units) {
    if (!unit.traits.trained) continue;
    for (const model::ParamDesc& p : unit.params) names.insert(p.name);
  }
  return names;
}

/// Whether a reference model takes memory of its own: where weights are trained that it has too, be
/// it those of adapters.
bool has_own_reference(const deck::Deck& deck) {
  if (deck.task.kl == 0) return false;
  return deck.model.adapter.kind == deck::AdapterKind::none || open_init_from(deck).has_adapters();
}

/// Which says nothing of values.
model::ModelConfig reference_config(const plan::PlanInputs& inputs) {
  model::ModelConfig config = inputs.model.config;
  config.head.values = false;
  return config;
}

GeneratorBytes bytes_of(const deck::Deck& deck, const plan::PlanInputs& inputs,
                        bool own_reference) {
  const GeneratorOptions options = options_of(deck, inputs);
  GeneratorBytes bytes = generator_bytes(inputs.model.config, options);
  if (own_reference) bytes.model += generator_bytes(reference_config(inputs), options).model;
  return bytes;
}

}  // namespace

GeneratorBytes actor_bytes(const deck::Deck& deck, const plan::PlanInputs& inputs) {
  if (!deck::draws_answers(deck.task.kind)) return {};
  return bytes_of(deck, inputs, has_own_reference(deck));
}

Actor::Actor(Run& run) : run_(run), hardware_(run.deck, run.job, true) {
  bool own_reference = false;
  run.control.together([&] {
    own_reference = has_own_reference(run.deck);
    check_memory(own_reference);
  });
  if (own_reference) run.control.together([&] { open_reference(); });
}

void Actor::open_reference() {
  const io::HfModel source = open_init_from(run_.deck);
  GeneratorOptions options = options_of(run_.deck, run_.engine->inputs());
  options.slots = 1;
  reference_.emplace(
      reference_config(run_.engine->inputs()), *hardware_.backend.device,
      *hardware_.backend.device_tier,
      [&](const model::ParamDesc& p, Range range, std::span<float> out) {
        source.read(p.name, range.begin, out);
      },
      options);
}

std::vector<float> Actor::reference_losses(std::span<const std::int32_t> tokens,
                                           std::int64_t first) {
  const std::vector<double> log_p = reference_
                                        ? reference_->log_probabilities(tokens, first)
                                        : generator_->log_probabilities(tokens, first, false);
  std::vector<float> losses;
  for (const double p : log_p) losses.push_back(static_cast<float>(-p));
  return losses;
}

void Actor::check_memory(bool own_reference) const {
  if (!hardware_.backend.device_tier->of_host()) return;
  const auto nodes = run_.job.mpi.node_of();
  const std::int64_t processes =
      std::ranges::count(nodes, nodes[static_cast<std::size_t>(run_.job.mpi.rank())]);
  const auto [model, cache] = bytes_of(run_.deck, run_.engine->inputs(), own_reference);
  const std::int64_t free = memory::available_bytes();
  if (model + cache <= free / processes) return;
  throw MemoryError(fmt::format(
      "to draw answers a rank needs {} for {} and {} for keys and values of {} of {}, but this "
      "node has {} left for {}: use fewer rollout.slots, a smaller batch.sequence, or fewer ranks "
      "a "
      "node",
      human_bytes(model), own_reference ? "two models" : "the model", human_bytes(cache),
      count_text(run_.deck.rollout.slots, "sequence"),
      count_text(run_.deck.batch.sequence, "token"), human_bytes(free),
      count_text(processes, "rank")));
}

void Actor::refresh() {
  const ModelState& state = run_.engine->state();
  const ParameterSource weights = [&](const model::ParamDesc& parameter, Range range,
                                      std::span<float> out) {
    state.own_weights(parameter, range, out);
    run_.control.unite(out);
  };
  if (!generator_) {
    generator_.emplace(run_.engine->inputs().model.config, *hardware_.backend.device,
                       *hardware_.backend.device_tier, weights,
                       options_of(run_.deck, run_.engine->inputs()));
    return;
  }
  const std::set<std::string> trained = names_of_trained(run_);
  generator_->set_parameters(
      weights, [&](const model::ParamDesc& parameter) { return trained.contains(parameter.name); });
}

}  // namespace tessera::train
