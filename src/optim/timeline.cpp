#include "optim/timeline.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.hpp"
#include "core/math.hpp"

namespace tessera::optim {

std::int64_t Timeline::global(std::int64_t step) const {
  std::int64_t global = batch_.global;
  for (const auto& entry : batch_.ramp) {
    if (step >= entry.step) global = entry.global;
  }
  return global;
}

double Timeline::lr_scale(std::int64_t step) const {
  if (batch_.ramp.empty()) return 1;
  const double share =
      static_cast<double>(global(step)) / static_cast<double>(batch_.ramp.back().global);
  switch (batch_.lr_scaling) {
    case deck::LrScaling::none: return 1;
    case deck::LrScaling::linear: return share;
    case deck::LrScaling::sqrt: return std::sqrt(share);
  }
  return 1;
}

std::int64_t Timeline::samples_after(std::int64_t step) const {
  std::int64_t samples = 0, from = 1;  // [from, next) has one batch size
  for (const auto& entry : batch_.ramp) {
    const std::int64_t next = std::min(entry.step, step + 1);
    if (next > from) samples += (next - from) * global(from), from = next;
  }
  return samples + (step + 1 - from) * global(from);
}

std::int64_t Timeline::steps_for_samples(std::int64_t samples, RunPosition at) const {
  std::int64_t done = at.samples, next = at.step + 1;
  for (const auto& entry : batch_.ramp) {
    const std::int64_t part = std::max<std::int64_t>(0, entry.step - next) * global(next);
    if (done + part >= samples) break;
    done += part;
    next = std::max(next, entry.step);
  }
  return next - 1 + ceil_div(std::max<std::int64_t>(0, samples - done), global(next));
}

std::int64_t Timeline::samples_of_tokens(std::int64_t tokens) const {
  return ceil_div(tokens, batch_.sequence);
}

std::int64_t Timeline::samples_of_epochs(double epochs) const {
  TESSERA_CHECK(sequences_ > 0, "a length in epochs before the data is known");
  constexpr double kForever = 0x1p60;  // so that sums of two such lengths fit 64 bits
  return static_cast<std::int64_t>(
      std::min(std::ceil(epochs * static_cast<double>(sequences_)), kForever));
}

std::int64_t Timeline::run_steps(const deck::RunSection& run, RunPosition from) const {
  std::int64_t steps = std::numeric_limits<std::int64_t>::max();
  if (run.steps) steps = std::min(steps, *run.steps);
  if (run.tokens) steps = std::min(steps, steps_for_samples(samples_of_tokens(*run.tokens), from));
  if (run.epochs) steps = std::min(steps, steps_for_samples(samples_of_epochs(*run.epochs), from));
  return steps;
}

}  // namespace tessera::optim
