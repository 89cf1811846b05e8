// The model that is trained, as it draws answers: all of it on each rank, in the type that training
// computes in.
#pragma once

#include <optional>

#include "train/generation/generator.hpp"
#include "train/run.hpp"

namespace tessera::train {

/// What a rank that draws keeps in the device's memory beside the state: the model, and the
/// reference model where that is one of its own; keys and values. Nothing of a deck that draws
/// nothing.
GeneratorBytes actor_bytes(const deck::Deck& deck, const plan::PlanInputs& inputs);

class Actor {
 public:
  /// Collective. MemoryError, on every rank, where a rank's memory has no room for the model beside
  /// its state, and for the keys and values of rollout.slots sequences.
  explicit Actor(Run& run);

  /// Takes over the weights as the last step has left them, on every layout: each rank has its part
  /// of them from those that keep it. Collective.
  void refresh();
  Generator& generator() { return *generator_; }

  /// -log p of an answer's tokens, behind a prompt of `first` tokens, under the model that the run
  /// began with: what adapters are beside, or else a model of its own, in memory where task.kl is
  /// above 0. Forgets what the first slot has seen.
  std::vector<float> reference_losses(std::span<const std::int32_t> tokens, std::int64_t first);

 private:
  void check_memory(bool own_reference) const;
  void open_reference();

  Run& run_;
  Hardware hardware_;
  std::optional<Generator> generator_;  // from the first refresh() on
  std::optional<Generator> reference_;  // where one is wanted that adapters are not beside
};

}  // namespace tessera::train
