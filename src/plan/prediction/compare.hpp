// Where the time of a step goes, predicted beside measured: shows at which ops the model of a
// machine is off.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "plan/prediction/timeline.hpp"

namespace tessera::plan {

/// What the times of one step are put under.
enum class TimeGroup : std::uint8_t {
  compute,     // activities on the compute stream, what it waits for, and the rest of the step
  background,  // activities on the other streams, which pass beside it
  operations,  // all ops by what they call
};

/// One share of the step, seconds of a rank, the mean over ranks; no value: not known.
struct TimeRow {
  TimeGroup group = TimeGroup::compute;
  std::string name;
  double count = 0;  // ops of a rank; of waits, those that took time
  std::optional<double> predicted, measured;
};

/// Seconds that the compute stream waited for ops of each other stream. The executor makes it wait
/// before an op for those that the op waits for, in that order, and at the step's end for all
/// streams.
struct Waits {
  std::array<double, kStreams> seconds{};
  std::array<std::int64_t, kStreams> count{};
};
Waits exposed_waits(const TimedRank& rank);

/// Either step may be missing; of both, in the order of `TimeGroup`. The rows of `compute` add up
/// to the mean over ranks of its time in the step: what is neither compute nor a wait is "between
/// operations".
std::vector<TimeRow> compare(const TimedStep* predicted, const TimedStep* measured);

/// From the first rank's begin to the last one's end, seconds.
double length_of(const TimedStep& step);

/// A table in milliseconds.
std::string to_text(const std::vector<TimeRow>& rows);

}  // namespace tessera::plan

template <>
struct tessera::EnumWords<tessera::plan::TimeGroup> {
  using G = tessera::plan::TimeGroup;
  static constexpr std::array table = {std::pair{G::compute, "compute"},
                                       std::pair{G::background, "background"},
                                       std::pair{G::operations, "operations"}};
};
