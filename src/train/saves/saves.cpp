#include "train/saves/saves.hpp"

#include <algorithm>
#include <utility>

#include "setup/shapes.hpp"

namespace tessera::train {

Saves::Saves(Run& run, FaultInjection& faults)
    : run_(run),
      faults_(faults),
      saver_(run.control, run.directory / "checkpoints", run.deck.checkpoint.keep,
             run.deck.checkpoint.keep_every, [&run] { run.log.sync(); }) {}

void Saves::after_step(bool wait, const MakeHeader& header) {
  const bool last = run_.course.over(), due = run_.course.due(run_.deck.checkpoint.every);
  if (saved_step_ == run_.course.progress.step || !(due || late_)) return;
  late_ = wait && !last;
  if (last || !(late_ || setup::saves_beside_steps(run_.deck))) {
    save_now(header());
  } else {
    due_ = !late_;
  }
}

bool Saves::take_snapshot_due() {
  if (!std::exchange(due_, false)) return false;
  finish();
  stall_ = 0;
  return true;
}

void Saves::open(const io::CheckpointHeader& before) {
  if (!setup::saves_with_updates(run_.deck)) return;
  const Stopwatch watch(run_.control);
  saver_.open(run_.engine->unsettled_state(), before);
  stall(watch);
}

Executor::SaveTile Saves::tiles_of(const ModelState& state) {
  if (!setup::saves_with_updates(run_.deck)) return {};
  return [this, &state](const plan::Op& op, const plan::SaveTile& tile) {
    return saver_.save_tile(state, op, tile);
  };
}

void Saves::begin_snapshot(const io::CheckpointHeader& before, const StepTimes& times) {
  const Stopwatch watch(run_.control);
  saver_.begin(run_.engine->unsettled_state(), ModelState::From::snapshot, before);
  stall(watch);
  stall_ += times.save_exposed;  // which is in the step's time already
}

void Saves::stall(const Stopwatch& watch) {
  const Spent spent = watch.read();
  spent_ += spent;
  stall_ += spent.seconds;
}

void Saves::advance() {
  run_.job.whereabouts.begin("saving, in", run_.course.progress.step);
  const Stopwatch watch(run_.control);
  const auto saved = saver_.advance(run_.course.progress.applied);
  stall(watch);
  if (saved) note(*saved);
}

void Saves::finish() {
  while (saver_.active()) advance();
}

void Saves::save_now(const io::CheckpointHeader& header) {
  finish();
  const Stopwatch watch(run_.control);
  stall_ = 0;
  saver_.begin(run_.engine->state(), ModelState::From::live, header);
  stall(watch);
  finish();
  slowest_ = std::max(slowest_, watch.read().seconds);  // the last update may have been left to do
}

void Saves::save_if_due(const MakeHeader& header) {
  if (due_) save_now(header());
}

void Saves::abandon() {
  due_ = late_ = false;
  saver_.abandon();
}

void Saves::set_aside_after(std::int64_t step) {
  run_.control.together([&] {
    if (run_.control.rank() != 0) return;
    for (const auto& entry : io::set_aside_after(run_.directory / "checkpoints", step)) {
      run_.log.say(fmt::format("a later checkpoint of another branch is set aside: {}",
                               entry.path.string()));
    }
  });
}

void Saves::note(const SaveResult& saved) {
  saved_step_ = saved.step;
  faults_.committed(saved.step);
  slowest_ = std::max(slowest_, saved.seconds);
  run_.log.record(fmt::format("checkpoint {} | {:.1f} MiB in {:.2f} s", saved.path.string(),
                              static_cast<double>(saved.bytes) / 0x1p20, saved.seconds),
                  {{"event", "checkpoint"},
                   {"step", saved.step},
                   {"path", saved.path.string()},
                   {"bytes", saved.bytes},
                   {"ms", saved.seconds * 1e3},
                   {"stall_ms", stall_ * 1e3}});
  if (!saved.not_pruned.empty()) {
    run_.log.record("warning: older checkpoints are still there: " + saved.not_pruned,
                    {{"event", "fault"}, {"what", "prune"}, {"why", saved.not_pruned}});
  }
}

}  // namespace tessera::train
