// A chart in characters that every terminal and every log has.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "verbs/report/axis.hpp"

namespace tessera::verbs {
namespace {

constexpr int kTextWidth = 100, kTextLeft = 11, kTextPlot = kTextWidth - kTextLeft;
// Within a row of characters a value has three heights.
constexpr std::string_view kHeights = "_-'";
constexpr int kHeightsOfRow = 3;

using TextRows = std::vector<std::string>;

/// The values of a line between its points.
class Between {
 public:
  explicit Between(const ChartLine& line) : line_(line) {}

  double at(double x) const {
    const auto next =
        static_cast<std::size_t>(std::ranges::lower_bound(line_.x, x) - line_.x.begin());
    if (next == 0) return line_.y.front();
    if (next == line_.x.size()) return line_.y.back();
    const double before = line_.x[next - 1], width = line_.x[next] - before;
    const double share = width > 0 ? (x - before) / width : 1;
    return line_.y[next - 1] + share * (line_.y[next] - line_.y[next - 1]);
  }

  /// The least and the greatest from `begin` to `end`.
  std::pair<double, double> range(double begin, double end) const {
    auto [low, high] = std::minmax({at(begin), at(end)});
    auto point = std::ranges::lower_bound(line_.x, begin) - line_.x.begin();
    for (; point < std::ssize(line_.x); ++point) {
      const auto i = static_cast<std::size_t>(point);
      if (line_.x[i] > end) break;
      low = std::min(low, line_.y[i]);
      high = std::max(high, line_.y[i]);
    }
    return {low, high};
  }

 private:
  const ChartLine& line_;
};

/// In thirds of a row, from below.
int height_of(const ChartAxis& y, double value, int rows) {
  const int all = kHeightsOfRow * rows;
  return std::clamp(static_cast<int>(std::floor(y.place(value) * all)), 0, all - 1);
}

/// What a line does in a column.
struct Passage {
  int low = 0, high = 0, middle = 0;  // heights
  bool rises = false;
};

/// A line that is nearly flat has one character at its height, a steep one a stroke.
void draw_column(TextRows& rows, std::size_t column, const Passage& line) {
  const auto row_of = [&](int height) { return std::ssize(rows) - 1 - height / kHeightsOfRow; };
  const auto put = [&](std::ptrdiff_t row, char c) {
    rows[static_cast<std::size_t>(row)][column] = c;
  };
  const int length = line.high - line.low;
  if (length < kHeightsOfRow) {
    put(row_of(line.middle), kHeights[static_cast<std::size_t>(line.middle % kHeightsOfRow)]);
  } else if (length < 2 * kHeightsOfRow) {
    put(row_of(line.middle), line.rises ? '/' : '\\');
  } else {
    for (std::ptrdiff_t row = row_of(line.high); row <= row_of(line.low); ++row) put(row, '|');
  }
}

/// Writes the text over a row of labels, its middle at `column`, where there is room.
void label(std::string& row, int column, const std::string& text) {
  const int length = static_cast<int>(text.size());
  const int begin = std::clamp(column - length / 2, 0, kTextWidth - length);
  const auto from = static_cast<std::size_t>(std::max(0, begin - 1));
  if (row.substr(from, text.size() + 2).find_first_not_of(' ') == std::string::npos)
    row.replace(static_cast<std::size_t>(begin), text.size(), text);
}

std::string trimmed(const std::string& row) {
  return row.substr(0, row.find_last_not_of(' ') + 1) + '\n';
}

std::string below_plot(const Chart& chart, const ChartAxis& x) {
  std::string edge(kTextPlot, '-'), names(kTextWidth, ' '), more = names;
  names.replace(kTextLeft - 2 - chart.x_name.size(), chart.x_name.size(), chart.x_name);
  for (const double at : x_ticks(chart, x)) {
    const int column =
        std::min(kTextPlot - 1, static_cast<int>(std::floor(x.place(at) * kTextPlot)));
    edge[static_cast<std::size_t>(column)] = '+';
    label(names, kTextLeft + column, short_number(at));
    if (chart.below) label(more, kTextLeft + column, chart.below(at));
  }
  return std::string(kTextLeft - 1, ' ') + '+' + edge + '\n' + trimmed(names) +
         (chart.below ? trimmed(more) : "");
}

}  // namespace

std::string terminal_chart(const Chart& chart, int rows) {
  double greatest = 0;
  const auto y = y_axis(chart, greatest);
  if (!y) return "";
  const ChartAxis x = x_axis(chart);
  TextRows drawn(static_cast<std::size_t>(rows), std::string(kTextPlot, ' '));
  for (const ChartLine& line : chart.lines) {
    const Between between(line);
    const double width = (x.high - x.low) / kTextPlot;
    for (int column = 0; column < kTextPlot; ++column) {
      const double begin = x.low + column * width;
      const auto [low, high] = between.range(begin, begin + width);
      const double end = begin + width, middle = between.at(begin + width / 2);
      draw_column(drawn, static_cast<std::size_t>(column),
                  {.low = height_of(*y, low, rows),
                   .high = height_of(*y, high, rows),
                   .middle = height_of(*y, middle, rows),
                   .rises = between.at(end) > between.at(begin)});
    }
  }
  std::vector<std::string> labels(drawn.size());
  for (const double at : ticks_of(*y, std::max(2, rows / 2))) {
    const int row = rows - 1 - height_of(*y, at, rows) / kHeightsOfRow;
    labels[static_cast<std::size_t>(row)] = short_number(at);
  }
  std::string text = chart.title + (chart.unit.empty() ? "" : ", " + chart.unit) + '\n';
  for (std::size_t row = 0; row < drawn.size(); ++row) {
    text += trimmed(fmt::format("{:>{}} {}{}", labels[row], kTextLeft - 2,
                                labels[row].empty() ? '|' : '+', drawn[row]));
  }
  return text + below_plot(chart, x);
}

}  // namespace tessera::verbs
