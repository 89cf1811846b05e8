#include "verbs/report/axis.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/svg.hpp"

namespace tessera::verbs {

double ChartAxis::place(double value) const {
  if (logarithmic) return (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
  return (value - low) / (high - low);
}

ChartAxis x_axis(const Chart& chart) {
  ChartAxis axis{std::numeric_limits<double>::max(), std::numeric_limits<double>::lowest()};
  for (const ChartLine& line : chart.lines) {
    if (line.x.empty()) continue;
    axis.low = std::min(axis.low, line.x.front());
    axis.high = std::max(axis.high, line.x.back());
  }
  if (axis.high <= axis.low) {
    const double room = std::max(0.5, 1e-9 * std::abs(axis.low));
    axis.low -= room, axis.high += room;
  }
  return axis;
}

std::optional<ChartAxis> y_axis(const Chart& chart, double& greatest) {
  constexpr double kMost = 1e300;  // distances of larger numbers may be none any more
  greatest = std::numeric_limits<double>::lowest();
  std::vector<double> all;
  for (const ChartLine& line : chart.lines) {
    for (const double y : line.y) {
      if (!std::isfinite(y)) continue;
      greatest = std::max(greatest, y);
      all.push_back(std::clamp(y, -kMost, kMost));
    }
  }
  if (all.empty()) return std::nullopt;
  std::ranges::sort(all);
  if (chart.scale == Chart::Scale::from_zero)
    return ChartAxis{0, all.back() > 0 ? 1.04 * all.back() : 1};
  ChartAxis axis{all.front(), all.back()};
  constexpr double kWide = 100, kFlat = 10, kFew = 0.01;
  if (chart.scale == Chart::Scale::logarithmic_where_wide && axis.low > 0 &&
      axis.high > kWide * axis.low) {
    axis.logarithmic = true;
    return axis;
  }
  const auto few = static_cast<std::size_t>(kFew * static_cast<double>(all.size()));
  const double usual = all[all.size() - 1 - few];
  if (all.back() - axis.low > kFlat * (usual - axis.low) && usual > axis.low)
    axis.high = axis.low + 1.3 * (usual - axis.low);
  const double room = axis.high > axis.low ? 0.04 * (axis.high - axis.low)
                                           : std::max(0.1 * std::abs(axis.high), 1e-12);
  if (axis.low < 0 || axis.low >= room) axis.low -= room;
  axis.high += room;
  return axis;
}

std::vector<double> ticks_of(const ChartAxis& axis, int count, double least) {
  std::vector<double> ticks;
  const auto add = [&](double at) {
    if (at >= axis.low && at <= axis.high && (ticks.empty() || at > ticks.back()))
      ticks.push_back(at);
  };
  if (!axis.logarithmic) {
    const double tick = std::max(least, svg::tick_of(axis.high - axis.low, count));
    const double first = std::ceil(axis.low / tick);
    for (int i = 0; i <= count; ++i) add((first + i) * tick);
    return ticks;
  }
  const int first = static_cast<int>(std::floor(std::log10(axis.low))),
            powers = static_cast<int>(std::floor(std::log10(axis.high))) - first;
  for (int i = 0; i <= powers; i += 1 + powers / (2 * count)) {
    for (const double times : {1.0, 2.0, 5.0}) {
      if (powers <= 3 || times == 1) add(times * std::pow(10, first + i));
    }
  }
  return ticks;
}

std::vector<double> x_ticks(const Chart& chart, const ChartAxis& axis) {
  return ticks_of(axis, 6, chart.x_name == "step" ? 1 : 0);
}

}  // namespace tessera::verbs
