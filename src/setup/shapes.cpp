#include "setup/shapes.hpp"

#include <set>

#include "optim/timeline.hpp"
#include "setup/inputs.hpp"

namespace tessera::setup {

plan::PlanShape plan_shape(const deck::BatchSection& batch, plan::PlanPurpose purpose,
                           std::int64_t global, std::int64_t data_ranks) {
  return {.purpose = purpose,
          .sequence = batch.sequence,
          .micro = batch.micro,
          .micro_batches = global / (batch.micro * data_ranks)};
}

plan::PlanShape evaluation_shape(const deck::BatchSection& batch, std::int64_t data_ranks) {
  return plan_shape(batch, plan::PlanPurpose::evaluate, optim::Timeline(batch, 0).global(1),
                    data_ranks);
}

bool saves_beside_steps(const deck::Deck& deck) { return deck.checkpoint.async; }

bool saves_with_updates(const deck::Deck& deck) {
  return saves_beside_steps(deck) && (deck.offload.parameters == deck::OffloadTier::nvme ||
                                      deck.offload.optimizer == deck::OffloadTier::nvme);
}

std::vector<plan::PlanShape> training_shapes(const deck::Deck& deck, std::int64_t data_ranks) {
  std::set<std::int64_t> ramp;
  for (const auto& entry : deck.batch.ramp) ramp.insert(entry.global);
  ramp.erase(deck.batch.global);
  std::vector<std::int64_t> globals{deck.batch.global};
  globals.insert(globals.end(), ramp.begin(), ramp.end());
  std::vector<plan::PlanShape> shapes;
  const auto add = [&](plan::PlanPurpose purpose, std::int64_t global) {
    shapes.push_back(plan_shape(deck.batch, purpose, global, data_ranks));
  };
  for (std::int64_t global : globals) {
    add(plan::PlanPurpose::train, global);
    if (deck.checkpoint.every > 0 && saves_beside_steps(deck))
      add(plan::PlanPurpose::train_snapshot, global);
  }
  if (offload_inputs(deck.offload).updates() || deck.zero.quantize.error_feedback)
    shapes.push_back(plan::kFlush);
  if (!deck.data.validation.empty()) shapes.push_back(evaluation_shape(deck.batch, data_ranks));
  return shapes;
}

}  // namespace tessera::setup
