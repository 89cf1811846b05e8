#include "verbs/report/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "core/svg.hpp"

namespace tessera::verbs {
namespace {

constexpr double kChartWidth = 640, kChartHeight = 236, kLeft = 54, kRight = 24, kTop = 10,
                 kBottom = 40;
constexpr double kPlotWidth = kChartWidth - kLeft - kRight,
                 kPlotHeight = kChartHeight - kTop - kBottom;

struct ChartAxis {
  double low = 0, high = 1;
  bool logarithmic = false;

  double place(double value) const {  // 0 to 1
    if (logarithmic) return (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
    return (value - low) / (high - low);
  }
};

double x_of(const ChartAxis& axis, double x) { return kLeft + kPlotWidth * axis.place(x); }
double y_of(const ChartAxis& axis, double y) {
  return kTop + kPlotHeight * (1 - axis.place(std::clamp(y, axis.low, axis.high)));
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

/// From the least to the greatest value, but for a few that would press the others flat: those are
/// drawn at the edge, and the figure says up to what they go.
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

/// `least`: the smallest distance that means something. Of axes longer than some powers of ten not
/// every one has a tick.
std::vector<double> ticks_of(const ChartAxis& axis, int count, double least = 0) {
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

std::string grid(const Chart& chart, const ChartAxis& x, const ChartAxis& y) {
  std::string out;
  const double bottom = kTop + kPlotHeight;
  for (const double at : ticks_of(y, 5)) {
    out += svg::line(kLeft, y_of(y, at), kChartWidth - kRight, y_of(y, at), "class=\"grid\"");
    out += svg::words(kLeft - 6, y_of(y, at) + 4, short_number(at), "class=\"tick y\"");
  }
  for (const double at : ticks_of(x, 6, chart.x_name == "step" ? 1 : 0)) {
    if (x_of(x, at) < kLeft - 1) continue;
    out += svg::line(x_of(x, at), bottom, x_of(x, at), bottom + 4, "class=\"edge\"");
    out += svg::words(x_of(x, at), bottom + 16, short_number(at), "class=\"tick x\"");
    if (chart.below)
      out += svg::words(x_of(x, at), bottom + 29, chart.below(at), "class=\"tick x faint\"");
  }
  return out + svg::line(kLeft, bottom, kChartWidth - kRight, bottom, "class=\"edge\"");
}

/// Marks of one kind within a point or two are one.
std::string marks(const Chart& chart, const ChartAxis& x) {
  std::string out;
  const double bottom = kTop + kPlotHeight;
  for (std::size_t i = 0; i < chart.marks.size();) {
    const ChartMark& first = chart.marks[i];
    const double at = x_of(x, std::clamp(first.x, x.low, x.high));
    std::string text = first.text;
    std::size_t more = 0;
    for (++i; i < chart.marks.size() && chart.marks[i].kind == first.kind &&
              x_of(x, chart.marks[i].x) < at + 2;
         ++i)
      ++more;
    if (more > 0) text += fmt::format(" (and {} more)", more);
    const double top = first.kind == "checkpoint" ? bottom - 5 : kTop;
    out += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.0f}\" y2=\"{2:.0f}\" class=\"mark {3}\">"
        "<title>{4}</title></line>\n",
        at, top, bottom, first.kind, svg::escaped(text));
  }
  return out;
}

/// The indices that are drawn: of each column of points the first, least, greatest and last.
std::vector<std::size_t> drawn(const ChartLine& line, const ChartAxis& x) {
  std::vector<std::size_t> result;
  const auto column = [&](std::size_t i) { return std::floor(x_of(x, line.x[i])); };
  const auto value = [&](std::size_t i) { return std::isfinite(line.y[i]) ? line.y[i] : 0; };
  for (std::size_t i = 0; i < line.x.size();) {
    std::size_t end = i, least = i, greatest = i;
    for (; end < line.x.size() && column(end) == column(i); ++end) {
      if (!std::isfinite(line.y[end])) continue;
      if (!std::isfinite(line.y[least]) || value(end) < value(least)) least = end;
      if (!std::isfinite(line.y[greatest]) || value(end) > value(greatest)) greatest = end;
    }
    std::array four{i, least, greatest, end - 1};
    std::ranges::sort(four);
    for (const std::size_t index : four) {
      if (result.empty() || result.back() != index) result.push_back(index);
    }
    i = end;
  }
  return result;
}

std::string path_of(const ChartLine& line, const ChartAxis& x, const ChartAxis& y) {
  std::string path;
  bool gap = true;
  for (const std::size_t i : drawn(line, x)) {
    if (!std::isfinite(line.y[i])) {
      gap = true;
      continue;
    }
    path += fmt::format("{}{:.1f} {:.1f}", gap ? 'M' : 'L', x_of(x, line.x[i]), y_of(y, line.y[i]));
    gap = false;
  }
  return path;
}

/// The mean of each value and its neighbours, a hundredth of the line in all.
ChartLine smoothed(const ChartLine& line) {
  ChartLine result{.name = line.name, .x = line.x, .y = line.y};
  const auto n = std::ssize(line.y), half = std::max<std::ptrdiff_t>(1, n / 200);
  std::vector<long double> sums(line.y.size() + 1);  // of what may be as large as a double is
  std::vector<double> counts(line.y.size() + 1);
  for (std::size_t i = 0; i < line.y.size(); ++i) {
    const bool counted = std::isfinite(line.y[i]);
    sums[i + 1] = sums[i] + (counted ? line.y[i] : 0);
    counts[i + 1] = counts[i] + (counted ? 1 : 0);
  }
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    const auto begin = static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, i - half)),
               end = static_cast<std::size_t>(std::min(n, i + half + 1));
    result.y[static_cast<std::size_t>(i)] = static_cast<double>(
        (sums[end] - sums[begin]) / (counts[end] - counts[begin]));  // 0 / 0: a gap
  }
  return result;
}

std::string drawing(const ChartLine& line, std::size_t number, const ChartAxis& x,
                    const ChartAxis& y) {
  constexpr std::size_t kMany = 400, kMostDots = 200, kColours = 8;
  const auto path = [&](const ChartLine& of, std::string_view kind, std::string_view name) {
    return fmt::format("<path class=\"{} s{}\" data-name=\"{}\" d=\"{}\"/>\n", kind,
                       number % kColours, svg::escaped(name), path_of(of, x, y));
  };
  if (line.form == ChartLine::Form::smoothed && line.x.size() > kMany)
    return path(line, "raw", line.name) + path(smoothed(line), "line", line.name + ", mean");
  std::string out = path(line, "line", line.name);
  if (line.form != ChartLine::Form::dots || line.x.size() > kMostDots) return out;
  for (std::size_t i = 0; i < line.x.size(); ++i) {
    if (!std::isfinite(line.y[i])) continue;
    out += fmt::format("<circle class=\"s{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>\n",
                       number % kColours, x_of(x, line.x[i]), y_of(y, line.y[i]));
  }
  return out;
}

std::string caption(const Chart& chart, const ChartAxis& y, double greatest) {
  std::string out = fmt::format("<b>{}</b>", svg::escaped(chart.title));
  std::string unit = chart.unit;
  if (y.logarithmic) unit += unit.empty() ? "logarithmic" : ", logarithmic";
  if (!y.logarithmic && greatest > y.high)
    unit += fmt::format("{}cut off: up to {}", unit.empty() ? "" : ", ", short_number(greatest));
  if (!unit.empty()) out += fmt::format(" <span class=\"unit\">{}</span>", svg::escaped(unit));
  if (chart.lines.size() < 2) return out;
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    out += fmt::format(" <span class=\"key\"><i class=\"s{}\"></i>{}</span>", i % 8,
                       svg::escaped(chart.lines[i].name));
  }
  return out;
}

}  // namespace

std::string figure(const Chart& chart) {
  double greatest = 0;
  const auto y = y_axis(chart, greatest);
  if (!y) return "";
  const ChartAxis x = x_axis(chart);
  std::string out = fmt::format(
      "<figure><figcaption>{}</figcaption>\n<svg class=\"plot\" viewBox=\"0 0 {} {}\" role=\"img\" "
      "aria-label=\"{}\" data-plot=\"{} {} {} {}\" data-x=\"{:.17g} {:.17g}\" "
      "data-y=\"{:.17g} {:.17g}\" data-log=\"{}\" data-name=\"{}\">\n",
      caption(chart, *y, greatest), kChartWidth, kChartHeight, svg::escaped(chart.title), kLeft,
      kTop, kPlotWidth, kPlotHeight, x.low, x.high, y->low, y->high, y->logarithmic ? 1 : 0,
      svg::escaped(chart.x_name));
  out += grid(chart, x, *y) + marks(chart, x);
  for (std::size_t i = 0; i < chart.lines.size(); ++i) out += drawing(chart.lines[i], i, x, *y);
  return out + "</svg></figure>\n";
}

std::string short_number(double value) {
  struct Suffix {
    double from, unit;  // from: rounded to four digits it is one of this unit
    const char* text;
  };
  constexpr double kBelow = 0.99995, kNoSuffix = 1e15;
  constexpr Suffix kSuffixes[] = {{kBelow * 1e12, 1e12, "T"},
                                  {kBelow * 1e9, 1e9, "G"},
                                  {kBelow * 1e6, 1e6, "M"},
                                  {kBelow * 1e4, 1e3, "k"}};
  for (const Suffix& suffix : kSuffixes) {
    if (std::abs(value) >= suffix.from && std::abs(value) < kNoSuffix)
      return fmt::format("{:.4g}{}", value / suffix.unit, suffix.text);
  }
  return fmt::format("{:.4g}", value + 0.0);  // no "-0"
}

std::string scale_bytes(std::span<ChartLine> lines) {
  constexpr std::array<const char*, 5> kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double most = 0;
  for (const ChartLine& line : lines) {
    for (const double y : line.y) most = std::isfinite(y) ? std::max(most, y) : most;
  }
  std::size_t unit = 0;
  for (; most >= 1024 && unit + 1 < kUnits.size(); ++unit) most /= 1024;
  for (ChartLine& line : lines) {
    for (double& y : line.y) y /= std::pow(1024, static_cast<double>(unit));
  }
  return kUnits[unit];
}

}  // namespace tessera::verbs
