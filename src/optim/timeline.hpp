// Steps, samples, tokens and epochs of a run, with a batch and sequences that may grow.
#pragma once

#include <cstdint>
#include <vector>

#include "deck/deck.hpp"

namespace tessera::optim {

/// How far a run has come.
struct RunPosition {
  std::int64_t step = 0, samples = 0, tokens = 0;
};

/// A length of a run in what its steps consume.
struct Amount {
  enum class Of : std::uint8_t { samples, tokens };
  std::int64_t count = 0;
  Of of = Of::samples;
};

/// Steps of one shape: from step `first` to before that of the next.
struct Phase {
  std::int64_t first = 1;                // step
  std::int64_t global = 0;               // sequences of a step
  std::int64_t sequence = 0;             // tokens of each
  std::int64_t samples = 0, tokens = 0;  // consumed before the first step
};

class Timeline {
 public:
  /// `sequences` is the number of training sequences of one epoch, each of batch.sequence tokens
  /// (0: unknown, lengths in epochs are refused).
  Timeline(const deck::BatchSection& batch, std::int64_t sequences);

  /// Sequences of the global batch of step `step` (from 1), the tokens of each, and of all.
  std::int64_t global(std::int64_t step) const { return phase(step).global; }
  std::int64_t sequence(std::int64_t step) const { return phase(step).sequence; }
  std::int64_t tokens(std::int64_t step) const { return global(step) * sequence(step); }
  /// What batch.lr_scaling makes of the learning rate of step `step`: 1 at the last batch of the
  /// ramp.
  double lr_scale(std::int64_t step) const;
  /// And besides, where steps are filled with whole documents (batch.token_budget): what it makes
  /// of how many targets of the step count, 1 where each of its tokens is followed by one.
  double lr_scale_of_targets(std::int64_t step, std::int64_t targets) const;
  /// Whether that depends on the targets.
  bool lr_follows_targets() const {
    return batch_.token_budget && !batch_.documents && batch_.lr_scaling != deck::LrScaling::none;
  }
  /// Sequences, and tokens, consumed by steps 1 .. step.
  std::int64_t samples_after(std::int64_t step) const;
  std::int64_t tokens_after(std::int64_t step) const;
  std::int64_t after(std::int64_t step, Amount::Of of) const {
    return of == Amount::Of::tokens ? tokens_after(step) : samples_after(step);
  }
  /// The step after which a run that is at `from` has consumed so much in all.
  std::int64_t steps_for(Amount amount, RunPosition from = {}) const;
  /// A length in tokens or epochs. An epoch is over when all sequences have been used, or, where
  /// the corpus is cut anew, all their tokens; rounded up.
  static Amount of_tokens(std::int64_t tokens) { return {tokens, Amount::Of::tokens}; }
  Amount of_epochs(double epochs) const;
  /// Steps of the run: the least of what run.steps, run.tokens and run.epochs ask for.
  /// Batches before `from` may have been of other sizes.
  std::int64_t run_steps(const deck::RunSection& run, RunPosition from = {}) const;

  /// All phases, in order; the last has no end.
  const std::vector<Phase>& phases() const { return phases_; }

 private:
  const Phase& phase(std::int64_t step) const;
  /// What batch.lr_scaling makes of a share of the batch that optimizer.lr is for.
  double scaled(double share) const;

  deck::BatchSection batch_;
  std::int64_t sequences_;
  std::vector<Phase> phases_;
};

}  // namespace tessera::optim
