// The trainer's side of checkpoints: where a run starts, and what it leaves behind.
#include "core/terminal.hpp"
#include "core/version.hpp"
#include "train/setup.hpp"
#include "train/trainer.hpp"

namespace tessera::train {

CheckpointHeader Trainer::header() const {
  CheckpointHeader h;
  h.step = progress_.step;
  h.applied_updates = progress_.applied;
  h.samples = progress_.samples;
  h.tokens = progress_.samples * deck_.batch.sequence;
  h.loss_scale = scaler_.state().scale;
  h.scaler_good_steps = scaler_.state().good_steps;
  h.scaler_hysteresis_left = scaler_.state().hysteresis;
  h.skipped_samples = progress_.skipped;
  h.spike_window = spikes_.recent();
  h.lr_factor = progress_.lr_factor;
  h.threads = engine_->threads();
  h.data = data_;
  h.layout = layout_of(engine_->inputs());
  // Once accepted is not accepted for ever.
  deck::Deck deck = deck_;
  deck.data.accept_changes = deck.data.accept_tokenizer = deck.model.accept_non_finite = false;
  h.deck = to_toml(deck);
  h.info["version"] = kVersion;
  return h;
}

void Trainer::pass_over(const std::filesystem::path& path, std::string_view why) {
  report_.record(
      fmt::format("checkpoint {} cannot be used: {}", printable(path.string()), why),
      {{"event", "fault"}, {"what", "checkpoint"}, {"path", path.string()}, {"why", why}});
}

/// Those that this run has not come to, or has given up.
void Trainer::set_checkpoints_aside_after(std::int64_t step) {
  control_.together([&] {
    if (control_.rank() != 0) return;
    for (const auto& entry : set_aside_after(directory_ / "checkpoints", step)) {
      report_.say(fmt::format("a later checkpoint of another branch is set aside: {}",
                              entry.path.string()));
    }
  });
}

void Trainer::start_or_resume() {
  control_.together([&] {
    if (control_.rank() == 0) clean_up_checkpoints(directory_ / "checkpoints");
  });
  const auto unusable = [&](const auto& path, std::string_view why) { pass_over(path, why); };
  const std::int64_t read_before = io_bytes().read;
  if (const auto from =
          load_checkpoint(loaded_, deck::OnResume::refused, control_, engine_->state(), unusable)) {
    control_.together([&] { check_same_threads(loaded_, *from, engine_->threads()); });
    check_data(*from);
    restore(*from);
    report_resume(*from, control_.max(io_bytes().read - read_before));
    first_step_ = progress_.step + 1;
    if (from->path.parent_path() == directory_ / "checkpoints") {
      saved_step_ = progress_.step;
      unproven_ = from->header;
    }
    return;
  }
  const std::string note = set_initial_state(deck_, control_, engine_->state());
  if (!note.empty()) report_.say(note);
}

/// The same names may hold other bytes, and the same sample would be another text.
void Trainer::check_data(const LoadedCheckpoint& from) {
  control_.together([&] {
    if (control_.rank() != 0 || from.header.data.empty()) return;
    const auto difference = find_difference(from.header.data, data_);
    if (!difference) return;
    if (!deck_.data.accept_changes) {
      throw DeckError(
          fmt::format("{}: cannot go on from {}: the training data is not what it was: {}: give "
                      "the run its data "
                      "back, start a new run (run.dir), or set data.accept_changes = true",
                      loaded_.where("data.train"), from.path.string(), *difference));
    }
    report_.record(fmt::format("the training data is not what it was (data.accept_changes): {}",
                               printable(*difference)),
                   {{"event", "data_changed"}, {"step", from.header.step}, {"what", *difference}});
  });
}

void Trainer::restore(const LoadedCheckpoint& from) {
  const CheckpointHeader& h = from.header;
  progress_ = {.step = h.step,
               .applied = h.applied_updates,
               .samples = h.samples,
               .skipped = h.skipped_samples,
               .lr_factor = h.lr_factor};
  spikes_.restore(h.spike_window);
  // A scale found for another type, or before the deck fixed one, says nothing now.
  const auto& saved = from.deck.precision;
  if (saved.compute == deck_.precision.compute && saved.loss_scale == deck_.precision.loss_scale) {
    scaler_.restore({.scale = h.loss_scale,
                     .good_steps = h.scaler_good_steps,
                     .hysteresis = h.scaler_hysteresis_left});
  }
}

/// Begins to write the state before the step that has just run, which its plan has copied.
void Trainer::save_snapshot(const CheckpointHeader& before, const StepTimes& times) {
  const auto begin = Clock::now();
  saver_->begin(engine_->state(), ModelState::From::snapshot, before);
  const double waited = seconds_since(begin);
  totals_.checkpoints_s += waited;
  save_stall_ = waited + times.copy_exposed;  // the latter is in the step's time already
}

void Trainer::advance_save() {
  job_.whereabouts.begin("saving, in", progress_.step);
  const auto begin = Clock::now();
  const auto saved = saver_->advance(progress_.applied);
  const double waited = seconds_since(begin);
  totals_.checkpoints_s += waited;
  save_stall_ += waited;
  if (saved) note_saved(*saved);
}

void Trainer::finish_save() {
  while (saver_->active()) advance_save();
}

void Trainer::note_saved(const SaveResult& saved) {
  saved_step_ = saved.step;
  faults_->committed(saved.step);
  slowest_save_s_ = std::max(slowest_save_s_, saved.seconds);
  report_.record(fmt::format("checkpoint {} | {:.1f} MiB in {:.2f} s", saved.path.string(),
                             static_cast<double>(saved.bytes) / 0x1p20, saved.seconds),
                 {{"event", "checkpoint"},
                  {"step", saved.step},
                  {"path", saved.path.string()},
                  {"bytes", saved.bytes},
                  {"ms", saved.seconds * 1e3},
                  {"stall_ms", save_stall_ * 1e3}});
  if (!saved.not_pruned.empty()) {
    report_.record("warning: older checkpoints are still there: " + saved.not_pruned,
                   {{"event", "fault"}, {"what", "prune"}, {"why", saved.not_pruned}});
  }
}

void Trainer::save_now() {
  finish_save();
  const auto begin = Clock::now();
  saver_->begin(engine_->state(), ModelState::From::live, header());
  save_stall_ = seconds_since(begin);
  totals_.checkpoints_s += save_stall_;
  finish_save();
}

}  // namespace tessera::train
