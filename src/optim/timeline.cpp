#include "optim/timeline.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "core/error.hpp"
#include "core/math.hpp"
#include "deck/curriculum.hpp"

namespace tessera::optim {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

/// a + b c, or the most that 64 bits count: what no run reaches.
std::int64_t plus_product(std::int64_t a, std::int64_t b, std::int64_t c) {
  std::int64_t product = 0, sum = 0;
  if (__builtin_mul_overflow(b, c, &product) || __builtin_add_overflow(a, product, &sum))
    return kMost;
  return sum;
}

/// What the steps of a phase consume each.
std::int64_t each(const Phase& phase, Amount::Of of) {
  return of == Amount::Of::tokens ? phase.global * phase.sequence : phase.global;
}

}  // namespace

Timeline::Timeline(const deck::BatchSection& batch, std::int64_t sequences)
    : batch_(batch), sequences_(sequences) {
  struct Change {
    std::int64_t global = 0, sequence = 0;  // 0: as before
  };
  std::map<std::int64_t, Change> changes;  // by the first step
  changes[1].global = batch.global;
  const auto first = [](std::int64_t step) { return std::max<std::int64_t>(1, step); };
  for (const auto& entry : batch.ramp) changes[first(entry.step)].global = entry.global;
  for (const auto& entry : deck::phases(batch)) changes[first(entry.step)].sequence = entry.length;
  for (const auto& [step, change] : changes) {
    Phase next{.first = step, .global = change.global, .sequence = change.sequence};
    if (!phases_.empty()) {
      const Phase& last = phases_.back();
      if (next.global == 0) next.global = last.global;
      if (next.sequence == 0) next.sequence = last.sequence;
      if (next.global == last.global && next.sequence == last.sequence) continue;
      next.samples = samples_after(step - 1);
      next.tokens = tokens_after(step - 1);
    }
    phases_.push_back(next);
  }
}

const Phase& Timeline::phase(std::int64_t step) const {
  const auto next = std::ranges::upper_bound(phases_, step, {}, &Phase::first);
  return next == phases_.begin() ? phases_.front() : *(next - 1);
}

double Timeline::lr_scale(std::int64_t step) const {
  if (batch_.ramp.empty()) return 1;
  return scaled(static_cast<double>(global(step)) / static_cast<double>(batch_.ramp.back().global));
}

double Timeline::lr_scale_of_targets(std::int64_t step, std::int64_t targets) const {
  if (!lr_follows_targets()) return 1;
  return scaled(static_cast<double>(targets) / static_cast<double>(tokens(step)));
}

double Timeline::scaled(double share) const {
  switch (batch_.lr_scaling) {
    case deck::LrScaling::none: return 1;
    case deck::LrScaling::linear: return share;
    case deck::LrScaling::sqrt: return std::sqrt(share);
  }
  return 1;
}

std::int64_t Timeline::samples_after(std::int64_t step) const {
  const Phase& at = phase(step);
  return plus_product(at.samples, std::max<std::int64_t>(0, step - at.first + 1), at.global);
}

std::int64_t Timeline::tokens_after(std::int64_t step) const {
  const Phase& at = phase(step);
  return plus_product(at.tokens, std::max<std::int64_t>(0, step - at.first + 1),
                      at.global * at.sequence);
}

std::int64_t Timeline::steps_for(Amount amount, RunPosition at) const {
  std::int64_t done = amount.of == Amount::Of::tokens ? at.tokens : at.samples;
  std::int64_t next = at.step + 1;
  for (const Phase& begins : phases_) {
    if (begins.first <= next) continue;
    const std::int64_t then = plus_product(done, begins.first - next, each(phase(next), amount.of));
    if (then >= amount.count) break;
    done = then;
    next = begins.first;
  }
  return next - 1 +
         ceil_div(std::max<std::int64_t>(0, amount.count - done), each(phase(next), amount.of));
}

Amount Timeline::of_epochs(double epochs) const {
  TESSERA_CHECK(sequences_ > 0, "a length in epochs before the data is known");
  constexpr double kForever = 0x1p60;  // so that sums of two such lengths fit 64 bits
  const bool tokens = batch_.curriculum.cuts_anew();
  const auto all = static_cast<double>(sequences_ * (tokens ? batch_.sequence : 1));
  return {static_cast<std::int64_t>(std::min(std::ceil(epochs * all), kForever)),
          tokens ? Amount::Of::tokens : Amount::Of::samples};
}

std::int64_t Timeline::run_steps(const deck::RunSection& run, RunPosition from) const {
  std::int64_t steps = kMost;
  if (run.steps) steps = std::min(steps, *run.steps);
  if (run.tokens) steps = std::min(steps, steps_for(of_tokens(*run.tokens), from));
  if (run.epochs) steps = std::min(steps, steps_for(of_epochs(*run.epochs), from));
  return steps;
}

}  // namespace tessera::optim
