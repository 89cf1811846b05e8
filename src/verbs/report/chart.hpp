// Charts of a run's numbers over its steps: as SVG that a page holds, or alone, or in characters.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::verbs {

struct ChartLine {
  std::string name;
  std::vector<double> x, y;  // x ascending; a y that is not finite is a gap
  enum class Form : std::uint8_t { line, smoothed, dots } form = Form::line;
};

/// A vertical line, or, of the kind "checkpoint", a tick at the axis.
struct ChartMark {
  double x = 0;
  std::string kind;  // its class in the page's style
  std::string text;
};

struct Chart {
  std::string title, unit;
  std::vector<ChartLine> lines;
  std::span<const ChartMark> marks = {};
  std::string x_name = "step";
  std::function<std::string(double x)> below = {};  // a second line of what ticks say
  enum class Scale : std::uint8_t {
    linear,
    logarithmic_where_wide,
    from_zero
  } scale = Scale::linear;
};

/// The chart as an HTML figure; empty where no line has a point. A line has at most four points for
/// each of the picture's columns, those that its first, least, greatest and last values make, so
/// that what it shows does not depend on how many steps there were.
std::string figure(const Chart& chart);

/// Charts of one line each below one another, as a file of SVG.
std::string picture(std::string_view title, std::span<const Chart> charts);

/// The chart in characters, 100 columns wide and `rows` high, for a terminal; empty where no line
/// has a point.
std::string terminal_chart(const Chart& chart, int rows);

/// "12.3k": about four digits.
std::string short_number(double value);

/// Divides bytes so that numbers are short; returns the unit, "MiB".
std::string scale_bytes(std::span<ChartLine> lines);

}  // namespace tessera::verbs
