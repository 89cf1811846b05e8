#include "setup/shapes.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "optim/timeline.hpp"
#include "setup/generation.hpp"
#include "setup/inputs.hpp"

namespace tessera::setup {
namespace {

plan::PlanShape plan_shape(const deck::BatchSection& batch, plan::PlanPurpose purpose,
                           const StepSize& size, std::int64_t data_ranks) {
  return {.purpose = purpose,
          .sequence = size.sequence,
          .micro = batch.micro,
          .micro_batches = size.global / (batch.micro * data_ranks)};
}

}  // namespace

plan::PlanShape training_shape(const deck::Deck& deck, plan::PlanPurpose purpose,
                               const StepSize& size, std::int64_t data_ranks) {
  plan::PlanShape shape = plan_shape(deck.batch, purpose, size, data_ranks);
  shape.tallies = is_mixture(deck.data) ? std::ssize(deck.data.train) : 0;
  return shape;
}

plan::PlanShape evaluation_shape(const deck::BatchSection& batch, std::int64_t data_ranks) {
  return plan_shape(batch, plan::PlanPurpose::evaluate,
                    {.global = optim::Timeline(batch, 0).global(1), .sequence = batch.sequence},
                    data_ranks);
}

bool saves_beside_steps(const deck::Deck& deck) { return deck.checkpoint.async; }

bool saves_with_updates(const deck::Deck& deck) {
  return saves_beside_steps(deck) && (deck.offload.parameters == deck::OffloadTier::nvme ||
                                      deck.offload.optimizer == deck::OffloadTier::nvme);
}

std::vector<plan::PlanShape> training_shapes(const deck::Deck& deck, std::int64_t data_ranks) {
  const optim::Timeline timeline(deck.batch, 0);
  const auto& phases = timeline.phases();
  const auto key = [](const optim::Phase& p) { return std::pair(p.sequence, p.global); };
  const optim::Phase& longest = *std::ranges::max_element(phases, {}, &optim::Phase::sequence);
  std::set<std::pair<std::int64_t, std::int64_t>> others;
  for (const optim::Phase& phase : phases) others.insert(key(phase));
  others.erase(key(longest));
  std::vector<plan::PlanShape> shapes;
  using plan::Compression;
  const bool compresses = deck.optimizer.compress_after.has_value();
  std::vector<Compression> compressions{Compression::none};
  if (compresses) compressions = {Compression::on, Compression::none, Compression::begins};
  const auto add = [&](std::int64_t sequence, std::int64_t global) {
    const StepSize size{.global = global, .sequence = sequence};
    const auto add_for = [&](plan::PlanPurpose purpose, Compression compression) {
      shapes.push_back(training_shape(deck, purpose, size, data_ranks));
      shapes.back().compression = compression;
    };
    for (const Compression compression : compressions) {
      add_for(plan::PlanPurpose::train, compression);
      if (deck.checkpoint.every > 0 && saves_beside_steps(deck))
        add_for(plan::PlanPurpose::train_snapshot, compression);
    }
  };
  add(longest.sequence, longest.global);
  for (const auto& [sequence, global] : others) add(sequence, global);
  if (offload_inputs(deck.offload).updates() || deck.zero.quantize.error_feedback || compresses) {
    shapes.push_back(plan::flush_after(Compression::none));
    if (compresses) shapes.push_back(plan::flush_after(Compression::on));
  }
  if (!deck.data.validation.empty()) shapes.push_back(evaluation_shape(deck.batch, data_ranks));
  std::ranges::copy(rollout_shapes(deck, data_ranks), std::back_inserter(shapes));
  return shapes;
}

std::vector<plan::PlanShape> largest_shapes(std::span<const plan::PlanShape> shapes) {
  std::vector<plan::PlanShape> largest;
  for (const plan::PlanShape& shape : shapes) {
    const bool below = std::ranges::any_of(shapes, [&](const plan::PlanShape& other) {
      return other != shape && other.purpose >= shape.purpose &&
             other.compression == shape.compression && other.adapted >= shape.adapted &&
             (other.renews || !shape.renews) && other.sequence >= shape.sequence &&
             other.micro >= shape.micro && other.micro_batches >= shape.micro_batches &&
             other.tallies >= shape.tallies;
    });
    if (!below) largest.push_back(shape);
  }
  return largest;
}

}  // namespace tessera::setup
