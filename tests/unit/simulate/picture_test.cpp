// The picture of a step: what it labels, and that it never draws what is too small to be seen.
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <string>
#include <vector>

#include "plan/prediction/timeline.hpp"

namespace tessera::plan {
namespace {

/// `micro_batches` forward, then backward with recomputation, of `layers` operations each.
Timeline step_of(int micro_batches, int layers) {
  constexpr double kOp = 1e-4;  // s
  RankTimeline rank{.name = "stage 0", .spans = {}};
  double now = 0;
  const auto add = [&](Stream stream, Activity activity, int micro_batch, double length) {
    rank.spans.push_back({stream, activity, micro_batch, now, now + length, "op"});
  };
  for (int m = 0; m < micro_batches; ++m) {
    for (int l = 0; l < layers; ++l, now += kOp) add(Stream::compute, Activity::forward, m, kOp);
    add(Stream::send_forward, Activity::messages, m, kOp / 50);
  }
  for (int m = 0; m < micro_batches; ++m) {
    for (int l = 0; l < layers; ++l) {
      add(Stream::compute, Activity::recomputation, m, kOp);
      now += kOp;
      add(Stream::compute, Activity::backward, m, 2 * kOp);
      add(Stream::reduce, Activity::gradients, m, kOp / 100);
      now += 2 * kOp;
    }
  }
  return {.title = "measured <here>", .ranks = {rank, rank}};
}

struct Rectangle {
  double x, width;
  std::string fill;
};
std::vector<Rectangle> rectangles(const std::string& svg) {
  static const std::regex kOne(
      "<rect x=\"([0-9.]+)\" y=\"[0-9.]+\" width=\"([0-9.]+)\" height=\"[0-9.]+\" "
      "fill=\"([^\"]+)\"");
  std::vector<Rectangle> found;
  for (std::sregex_iterator it(svg.begin(), svg.end(), kOne), end; it != end; ++it)
    found.push_back({std::stod((*it)[1]), std::stod((*it)[2]), (*it)[3]});
  return found;
}
int count(const std::string& text, const std::string& what) {
  int n = 0;
  for (std::size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST(Picture, LabelsStreamsAndNumbersMicroBatches) {
  const std::string svg = to_svg(std::vector{step_of(4, 3)});
  for (const char* stream : {">compute<", ">send_forward<", ">reduce<"})
    EXPECT_EQ(count(svg, stream), 2) << stream << ": once for each rank";
  EXPECT_EQ(count(svg, ">copy<"), 0) << "not used";
  for (const char* number : {">0</text>", ">3</text>"})
    EXPECT_EQ(count(svg, number), 4) << number << ": forward and backward of both ranks";
  EXPECT_EQ(count(svg, "enlarged"), 0) << "all numbers have room";
  EXPECT_NE(svg.find("measured &lt;here&gt;"), svg.npos);
}

TEST(Picture, RecomputationHasAShadeOfItsOwn) {
  std::map<std::string, double> width;
  for (const Rectangle& r : rectangles(to_svg(std::vector{step_of(2, 2)})))
    width[r.fill] += r.width;
  const auto legend = 12.0;
  // As long as forward, half as long as backward, but for what is drawn a point too long.
  EXPECT_NEAR(width["#a0cbe8"] - legend, width["#4e79a7"] - legend, 8);
  EXPECT_NEAR(2 * (width["#a0cbe8"] - legend), width["#f28e2b"] - legend, 16);
}

TEST(Picture, NothingIsNarrowerThanAPoint) {
  for (const auto& [micro_batches, layers] : {std::pair{2, 2}, {64, 8}, {300, 100}}) {
    const std::string svg = to_svg(std::vector{step_of(micro_batches, layers)});
    double right = 0;
    for (const Rectangle& r : rectangles(svg)) {
      EXPECT_GE(r.width, 1);
      right = std::max(right, r.x + r.width);
    }
    EXPECT_LE(right, 1200 - 24 + 0.01) << "and within the plot";
    EXPECT_LT(svg.size(), 2u << 20);
  }
}

TEST(Picture, EnlargesAPartOfALargeStep) {
  const Timeline large = step_of(64, 8);
  const std::string svg = to_svg(std::vector{large, large});
  EXPECT_EQ(count(svg, ">enlarged: "), 2) << "below each timeline";
  EXPECT_EQ(count(svg, "class=\"detail\""), 2) << "framed in each";
  EXPECT_GE(count(svg, ">63</text>"), 4) << "the last forward, before the first backward";
}

TEST(Picture, NeighboursKeepTheirShares) {
  // Spans of a tenth of a point, every second of another activity, three times as long.
  RankTimeline rank{.name = "stage 0", .spans = {}};
  double now = 0;
  for (int i = 0; i < 10000; ++i) {
    const bool backward = i % 2 == 1;
    const double length = backward ? 3e-6 : 1e-6;
    rank.spans.push_back({Stream::compute, backward ? Activity::backward : Activity::forward, -1,
                          now, now + length, "op"});
    now += length;
  }
  double drawn = 0;
  for (const Rectangle& r : rectangles(to_svg(std::vector{Timeline{"", {rank}}}))) {
    if (r.fill == "#f28e2b") drawn += r.width;
  }
  EXPECT_GT(drawn, 970) << "each point has the colour of what fills most of it";
}

}  // namespace
}  // namespace tessera::plan
