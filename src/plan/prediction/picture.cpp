// The SVG of a step.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "core/svg.hpp"
#include "plan/prediction/timeline.hpp"

namespace tessera::plan {
namespace {

using svg::Box, svg::rectangle, svg::words;

struct Shade {
  const char *fill, *ink;  // of a box, and of the number in it
};
constexpr Shade kShades[] = {{"#4e79a7", "white"}, {"#a0cbe8", "black"}, {"#f28e2b", "black"},
                             {"#59a14f", "white"}, {"#76b7b2", "black"}, {"#e15759", "white"},
                             {"#b07aa1", "white"}, {"#edc948", "black"}, {"#9c755f", "white"}};
static_assert(std::size(kShades) == EnumWords<Activity>::table.size());

constexpr double kWidth = 1200, kLeft = 196, kRight = 24, kPlot = kWidth - kLeft - kRight;
constexpr double kComputeHeight = 22, kStreamHeight = 11, kGap = 10, kTitle = 26, kAxis = 24;
constexpr double kDigit = 6.2;  // width of a digit of a micro-batch's number

/// Seconds of the step that a panel shows.
struct Window {
  double begin = 0, end = 0;
  double point() const { return (end - begin) / kPlot; }
};

/// A box of a row, in points from the left of the plot.
struct Cell {
  Activity activity = Activity::forward;
  std::int32_t micro_batch = -1;
  double begin = 0, end = 0;
  bool like(const Cell& o) const { return activity == o.activity && micro_batch == o.micro_batch; }
};

constexpr double kNoGap = 0.5;  // points: what is nearer touches

/// Turns spans, in the order of time, into cells of a point at least: a step may have a hundred
/// thousand spans, a picture has a thousand points.
class Row {
 public:
  Row(const std::vector<Span>& spans, Stream stream, const Window& window) {
    for (const Span& s : spans) {
      if (s.stream != stream || s.end <= s.begin || s.end <= window.begin || s.begin >= window.end)
        continue;
      add({.activity = s.activity,
           .micro_batch = s.micro_batch,
           .begin = (std::max(s.begin, window.begin) - window.begin) / window.point(),
           .end = (std::min(s.end, window.end) - window.begin) / window.point()});
    }
    finish();
  }
  const std::vector<Cell>& cells() const { return cells_; }

 private:
  void add(const Cell& span) {
    const bool touches = !open_.empty() && span.begin - open_.back().end < kNoGap;
    if (touches && open_.back().like(span)) {
      open_.back().end = span.end;
    } else {
      if (!open_.empty() && (!touches || open_.back().end - open_.front().begin >= 1)) close();
      open_.push_back(span);
    }
    const Cell& last = open_.back();
    if (last.end - last.begin >= 1) {  // what came before it is too little to show
      open_.back().begin = open_.front().begin;
      open_.erase(open_.begin(), open_.end() - 1);
    } else if (last.end - open_.front().begin >= 1) {
      close();
    }
  }

  /// Of what touches, the longest stands for all.
  void close() {
    Cell cell = *std::ranges::max_element(open_, {}, [](const Cell& c) { return c.end - c.begin; });
    cell.begin = open_.front().begin;
    cell.end = open_.back().end;
    open_.clear();
    if (!cells_.empty()) {
      Cell& last = cells_.back();
      if (cell.end <= last.end) return;  // within a point that is drawn already
      cell.begin = std::max(cell.begin, last.end);
      if (last.like(cell) && cell.begin - last.end < kNoGap) {
        last.end = cell.end;
        return;
      }
    }
    cell.end = std::max(cell.end, cell.begin + 1);
    cells_.push_back(cell);
  }

  void finish() {
    if (!open_.empty()) close();
    if (cells_.empty() || cells_.back().end <= kPlot) return;
    cells_.back().end = kPlot;
    cells_.back().begin = std::min(cells_.back().begin, kPlot - 1);
  }

  std::vector<Cell> open_;  // touch one another, too short or still growing
  std::vector<Cell> cells_;
};

double last_end(std::span<const Timeline> timelines) {
  double end = 0;
  for (const Timeline& t : timelines) {
    for (const RankTimeline& r : t.ranks) {
      for (const Span& s : r.spans) end = std::max(end, s.end);
    }
  }
  return std::max(end, 1e-9);
}

std::string tip_of(const Cell& c, const Window& window) {
  const auto ms = [&](double at) { return (window.begin + at * window.point()) * 1e3; };
  std::string tip(enum_word(c.activity));
  if (c.micro_batch >= 0) tip += fmt::format(", micro-batch {}", c.micro_batch);
  return fmt::format("{}: {:.4g} to {:.4g} ms", tip, ms(c.begin), ms(c.end));
}

std::string boxes(const Row& row, double y, double height, const Window& window) {
  constexpr double kTipped = 4;  // points: a pointer hardly rests on less
  std::string out;
  for (const Cell& c : row.cells()) {
    const double width = c.end - c.begin;
    out += rectangle({kLeft + c.begin, y, width, height - 1}, at(kShades, c.activity).fill, "",
                     width < kTipped ? "" : tip_of(c, window));
  }
  return out;
}

/// The numbers of micro-batches, where they have room: once for what goes one way without a break.
std::string numbers(const Row& row, double y) {
  std::string out;
  std::optional<Cell> last;
  for (const Cell& c : row.cells()) {
    if (c.micro_batch < 0) continue;
    const bool goes_on = last && last->micro_batch == c.micro_batch &&
                         (last->activity == Activity::forward) == (c.activity == Activity::forward);
    const std::string number = fmt::format("{}", c.micro_batch);
    if (goes_on || c.end - c.begin < kDigit * static_cast<double>(number.size()) + 3) continue;
    out += words(kLeft + (c.begin + c.end) / 2, y + 14, number,
                 fmt::format("class=\"on\" text-anchor=\"middle\" fill=\"{}\"",
                             at(kShades, c.activity).ink));
    last = c;
  }
  return out;
}

/// A timeline's ranks over a window of time. Moves `y` below it.
std::string panel(const Timeline& t, std::string_view title, const Window& window, double& y) {
  std::string bars;
  const double top = y + kTitle;
  std::string out = words(kLeft, y + 16, title, "font-weight=\"bold\"");
  y = top;
  for (const RankTimeline& rank : t.ranks) {
    bars += words(8, y + 15, rank.name, "font-weight=\"bold\"");
    bars += rectangle({kLeft, y, kPlot, kComputeHeight}, "#eeeeee", "class=\"idle\"");
    for (const StreamRow& stream : kStreamRows) {
      const bool compute = stream.stream == Stream::compute;
      const Row row(rank.spans, stream.stream, window);
      const bool used = std::ranges::any_of(
          rank.spans, [&](const Span& s) { return s.stream == stream.stream && s.end > s.begin; });
      if (!compute && !used) continue;
      const double height = compute ? kComputeHeight : kStreamHeight;
      bars += words(kLeft - 8, y + height / 2 + 3, stream.name,
                    "class=\"stream\" text-anchor=\"end\" font-size=\"9\" fill=\"#555\"");
      bars += boxes(row, y, height, window);
      if (compute) bars += numbers(row, y);
      y += height;
    }
    y += kGap;
  }
  const double tick = svg::tick_of(window.end - window.begin);
  for (double i = std::ceil(window.begin / tick); i * tick <= window.end; ++i) {
    const double x = kLeft + (i * tick - window.begin) / window.point();
    out += svg::line(x, top, x, y, "stroke=\"#bbb\" stroke-width=\"0.5\"");
    out += words(x, y + 13, fmt::format("{:g} ms", i * tick * 1e3), "text-anchor=\"middle\"");
  }
  y += kAxis;
  return out + bars;
}

/// Which part of the step to enlarge so that the numbers of micro-batches have room; nothing where
/// most have room as it is. It shows the first backward, and forward before it.
std::optional<Window> detail_of(const Timeline& t, const Window& whole) {
  constexpr double kReadable = 16, kEnlarged = 34;  // points of a box with its number
  std::vector<double> lengths;  // of what a rank does of one micro-batch at once
  double turn = whole.end;
  for (const RankTimeline& rank : t.ranks) {
    const Span* last = nullptr;
    for (const Span& s : rank.spans) {
      if (s.stream != Stream::compute || s.micro_batch < 0) continue;
      const bool goes_on =
          last != nullptr && last->micro_batch == s.micro_batch &&
          (last->activity == Activity::forward) == (s.activity == Activity::forward);
      if (!goes_on) lengths.push_back(0);
      lengths.back() += s.end - s.begin;
      if (s.activity == Activity::backward) turn = std::min(turn, s.begin);
      last = &s;
    }
  }
  if (lengths.empty()) return std::nullopt;
  const auto middle = lengths.begin() + (std::ssize(lengths) - 1) / 2;
  std::ranges::nth_element(lengths, middle);
  if (*middle <= 0 || *middle / whole.point() >= kReadable) return std::nullopt;
  const double length = *middle * kPlot / kEnlarged;
  const double begin = std::clamp(turn - length / 3, 0.0, whole.end - length);
  return Window{begin, begin + length};
}

std::string legend(double y) {
  std::string out;
  double x = 8;
  for (const auto& [activity, word] : EnumWords<Activity>::table) {
    out += rectangle({x, y, 12, 12}, at(kShades, activity).fill);
    out += words(x + 16, y + 10, word);
    x += 34 + 6 * static_cast<double>(std::string_view(word).size());
  }
  return out + words(x, y + 10, "numbers: micro-batches");
}

}  // namespace

std::string to_svg(std::span<const Timeline> timelines) {
  const Window whole{0, last_end(timelines)};
  std::string body = legend(10);
  double y = 34;
  for (const Timeline& t : timelines) {
    const double top = y + kTitle - 3;
    body += panel(t, t.title, whole, y);
    const auto detail = detail_of(t, whole);
    if (!detail) continue;
    const double width = std::max(3.0, (detail->end - detail->begin) / whole.point());
    body += rectangle({kLeft + detail->begin / whole.point(), top, width, y - kAxis - top}, "none",
                      "class=\"detail\" stroke=\"#d00\" stroke-width=\"1.5\"");
    body += panel(t,
                  fmt::format("enlarged: what the red frame above holds, {:.4g} to {:.4g} ms",
                              detail->begin * 1e3, detail->end * 1e3),
                  *detail, y);
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0} {1:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect class=\"paper\" width=\"100%\" height=\"100%\" fill=\"white\"/>\n{2}</svg>",
      kWidth, y + 8, body);
}

}  // namespace tessera::plan
