// How far a run has come, and how the rest of it goes: batches, learning rate, loss scale.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/math.hpp"
#include "deck/deck.hpp"
#include "io/checkpoint_manifest.hpp"
#include "optim/learning_rate.hpp"
#include "optim/loss_scaler.hpp"
#include "optim/timeline.hpp"

namespace tessera::train {

/// How far a run has come; all of it is in every checkpoint's header.
struct Progress {
  std::int64_t step = 0;     // attempts
  std::int64_t applied = 0;  // updates
  std::int64_t critic_updates = 0;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
  std::vector<Range> skipped;  // samples that rollbacks have passed over
  double lr_factor = 1;        // what they have made of the learning rate
};

class Course {
 public:
  explicit Course(const deck::Deck& deck);

  /// The training data has so many sequences.
  void set_data(std::int64_t sequences);
  /// The rest of the run is as long as the deck says, whatever batches came before: to be called
  /// whenever progress was set.
  void set_length();
  /// Sets progress and loss scale to a checkpoint's; `saved` is the deck it was made with.
  void restore(const io::CheckpointHeader& header, const deck::Deck& saved);
  void save_to(io::CheckpointHeader& header) const;
  /// The step that has just run: `applied` says whether it changed the state.
  void count_step(bool applied);
  /// Passes over the samples until `samples`, as if they were of the next step.
  void skip_to(std::int64_t samples);

  /// Sequences of a step, the tokens of each, and its target tokens.
  std::int64_t sequences(std::int64_t step) const { return timeline_.global(step); }
  std::int64_t sequence(std::int64_t step) const { return timeline_.sequence(step); }
  double tokens(std::int64_t step) const { return static_cast<double>(timeline_.tokens(step)); }
  const optim::Timeline& timeline() const { return timeline_; }
  /// Of the whole run.
  std::int64_t steps() const { return steps_; }
  optim::RunPosition position() const {
    return {.step = progress.step, .samples = progress.samples, .tokens = progress.tokens};
  }
  bool over() const { return progress.step >= steps_; }
  /// Whether what is done every so many steps, and after the last, is due now; 0: never.
  bool due(std::int64_t every) const { return every > 0 && (progress.step % every == 0 || over()); }
  /// The learning rate of the nth update, if step `step` makes it.
  double lr(std::int64_t update, std::int64_t step) const {
    return progress.lr_factor * timeline_.lr_scale(step) * rate_->at(update);
  }

  /// The learning rate of the next update, and what it would be had the run's length not changed.
  struct MovedRate {
    std::int64_t steps_before = 0, decay_before = 0;
    double now = 0, before = 0;
  };
  /// Where the run's length of now makes the learning rate leave the curve that it was on by the
  /// deck `before`. Nothing where the new curve goes on from the rate of the last update, as that
  /// of a cooldown does.
  std::optional<MovedRate> rate_moved_by_length(const deck::Deck& before) const;

  Progress progress;
  optim::LossScaler scaler;

 private:
  const deck::Deck& deck_;
  std::int64_t data_ = 0;  // sequences
  optim::Timeline timeline_;
  std::int64_t steps_ = 0;
  std::optional<optim::LearningRate> rate_;
};

}  // namespace tessera::train
