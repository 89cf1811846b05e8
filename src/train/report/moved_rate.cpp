#include "train/report/moved_rate.hpp"

#include <fmt/format.h>

#include "core/bytes.hpp"
#include "train/report/resolved.hpp"

namespace tessera::train {
namespace {

/// Keys that a curve of learning rates follows, beside the run's length.
bool shapes_the_curve(const std::string& key) {
  return key == "optimizer.lr" || key.starts_with("schedule.") || key == "batch.global" ||
         key == "batch.ramp" || key == "batch.curriculum" || key == "batch.lr_scaling";
}

}  // namespace

std::string moved_rate_text(const Course::MovedRate& moved, std::int64_t step, std::int64_t steps,
                            const deck::Deck& before, const deck::Deck& now) {
  std::string others;
  for (const auto& d : changes(before, now)) {
    if (!shapes_the_curve(d.key)) continue;
    others += fmt::format("; {} = {}, was {}", d.key, d.now, d.saved);
  }
  std::string text = fmt::format(
      "warning: the run is now {} long, was {}{} the learning rate: {:.3e} in step {}, {:.3e} on "
      "the curve of before",
      count_text(steps, "step"), moved.steps_before,
      others.empty() ? ", which moves" : others + ": together they move", moved.now, step + 1,
      moved.before);
  const deck::ScheduleKind kind = before.schedule.kind;
  const bool from_warmup = kind == deck::ScheduleKind::linear || kind == deck::ScheduleKind::cosine;
  if (others.empty() && from_warmup && moved.decay_before > 0)
    text += fmt::format(", which schedule.decay_steps = {} keeps", moved.decay_before);
  return text;
}

}  // namespace tessera::train
