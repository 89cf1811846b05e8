// Steps, samples, tokens and epochs of a run, with a batch size that may ramp up.
#pragma once

#include <cstdint>

#include "deck/deck.hpp"

namespace tessera::optim {

/// How far a run has come.
struct RunPosition {
  std::int64_t step = 0, samples = 0;
};

class Timeline {
 public:
  /// `sequences` is the number of training sequences of one epoch (0: unknown, lengths in epochs
  /// are refused).
  Timeline(const deck::BatchSection& batch, std::int64_t sequences)
      : batch_(batch), sequences_(sequences) {}

  /// Sequences of the global batch of step `step` (from 1).
  std::int64_t global(std::int64_t step) const;
  /// What batch.lr_scaling makes of the learning rate of step `step`: 1 at the last batch of the
  /// ramp.
  double lr_scale(std::int64_t step) const;
  /// Sequences consumed by steps 1 .. step.
  std::int64_t samples_after(std::int64_t step) const;
  /// The step after which a run that is at `from` has consumed `samples` sequences.
  std::int64_t steps_for_samples(std::int64_t samples, RunPosition from = {}) const;
  /// Lengths in sequences, rounded up.
  std::int64_t samples_of_tokens(std::int64_t tokens) const;
  std::int64_t samples_of_epochs(double epochs) const;
  /// Steps of the run: the least of what run.steps, run.tokens and run.epochs ask for.
  /// Batches before `from` may have been of other sizes.
  std::int64_t run_steps(const deck::RunSection& run, RunPosition from = {}) const;

 private:
  deck::BatchSection batch_;
  std::int64_t sequences_;
};

}  // namespace tessera::optim
