#include "verbs/report/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "core/svg.hpp"
#include "verbs/report/axis.hpp"

namespace tessera::verbs {
namespace {

constexpr double kChartWidth = 640, kChartHeight = 236, kLeft = 54, kRight = 24, kTop = 10,
                 kBottom = 40;
constexpr double kPlotWidth = kChartWidth - kLeft - kRight,
                 kPlotHeight = kChartHeight - kTop - kBottom;

double x_of(const ChartAxis& axis, double x) { return kLeft + kPlotWidth * axis.place(x); }
double y_of(const ChartAxis& axis, double y) {
  return kTop + kPlotHeight * (1 - axis.place(std::clamp(y, axis.low, axis.high)));
}

std::string grid(const Chart& chart, const ChartAxis& x, const ChartAxis& y) {
  std::string out;
  const double bottom = kTop + kPlotHeight;
  for (const double at : ticks_of(y, 5)) {
    out += svg::line(kLeft, y_of(y, at), kChartWidth - kRight, y_of(y, at), "class=\"grid\"");
    out += svg::words(kLeft - 6, y_of(y, at) + 4, short_number(at), "class=\"tick y\"");
  }
  for (const double at : x_ticks(chart, x)) {
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

std::string plot(const Chart& chart, const ChartAxis& x, const ChartAxis& y) {
  std::string out = grid(chart, x, y) + marks(chart, x);
  for (std::size_t i = 0; i < chart.lines.size(); ++i) out += drawing(chart.lines[i], i, x, y);
  return out;
}

// Of what stands alone: not every program that shows SVG knows variables, as the page's style has.
constexpr std::string_view kPictureStyle = R"(
text { font: 11px sans-serif; fill: #1c2024; }
.title { font-weight: bold; } .name { font-size: 12px; }
.y { text-anchor: end; } .x { text-anchor: middle; } .faint { fill: #626a73; }
.grid { stroke: #d5dae0; stroke-width: .6; } .edge { stroke: #626a73; }
path { fill: none; stroke: #2f6db5; stroke-width: 1.7; stroke-linejoin: round; }
)";

}  // namespace

std::string figure(const Chart& chart) {
  double greatest = 0;
  const auto y = y_axis(chart, greatest);
  if (!y) return "";
  const ChartAxis x = x_axis(chart);
  return fmt::format(
      "<figure><figcaption>{}</figcaption>\n<svg class=\"plot\" viewBox=\"0 0 {} {}\" role=\"img\" "
      "aria-label=\"{}\" data-plot=\"{} {} {} {}\" data-x=\"{:.17g} {:.17g}\" "
      "data-y=\"{:.17g} {:.17g}\" data-log=\"{}\" data-name=\"{}\">\n{}</svg></figure>\n",
      caption(chart, *y, greatest), kChartWidth, kChartHeight, svg::escaped(chart.title), kLeft,
      kTop, kPlotWidth, kPlotHeight, x.low, x.high, y->low, y->high, y->logarithmic ? 1 : 0,
      svg::escaped(chart.x_name), plot(chart, x, *y));
}

std::string picture(std::string_view title, std::span<const Chart> charts) {
  constexpr double kTitle = 30, kName = 20;
  std::string body = svg::words(kLeft, 20, title, "class=\"title\"");
  double top = kTitle;
  for (const Chart& chart : charts) {
    double greatest = 0;
    const auto y = y_axis(chart, greatest);
    if (!y) continue;
    const std::string name = chart.unit.empty() ? chart.title : chart.title + ", " + chart.unit;
    body += svg::words(kLeft, top + 14, name, "class=\"name\"");
    body += fmt::format("<g transform=\"translate(0 {})\">\n{}", top + kName,
                        plot(chart, x_axis(chart), *y));
    body += svg::words(kChartWidth - kRight, kChartHeight - kBottom - 4, chart.x_name,
                       "class=\"faint y\"");
    body += "</g>\n";
    top += kName + kChartHeight;
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\">\n<style>{2}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{3}</svg>\n",
      kChartWidth, top, kPictureStyle, body);
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
