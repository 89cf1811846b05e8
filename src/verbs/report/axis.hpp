// The axes of a chart: what they range over, and round numbers on them.
#pragma once

#include <optional>
#include <vector>

#include "verbs/report/chart.hpp"

namespace tessera::verbs {

struct ChartAxis {
  double low = 0, high = 1;
  bool logarithmic = false;

  double place(double value) const;  // 0 to 1
};

ChartAxis x_axis(const Chart& chart);

/// From the least to the greatest value, but for a few that would press the others flat: those are
/// drawn at the edge, and the figure says up to what they go (`greatest`). From 0 to the greatest
/// where the chart says so. Nothing where no line has a point.
std::optional<ChartAxis> y_axis(const Chart& chart, double& greatest);

/// About `count` round numbers. `least`: the smallest distance that means something. Of axes longer
/// than some powers of ten not every one has a tick.
std::vector<double> ticks_of(const ChartAxis& axis, int count, double least = 0);
/// Steps are whole.
std::vector<double> x_ticks(const Chart& chart, const ChartAxis& axis);

}  // namespace tessera::verbs
