#include "io/box.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace tessera {
namespace {

/// Flat indices, in the tensor, of a box's elements in the box's own order.
std::vector<std::int64_t> flat_indices(const io::Shape& shape, const io::Box& box) {
  std::vector<std::int64_t> indices;
  const auto& s = box.start;
  const auto& n = box.count;
  for (auto a = s[0]; a < s[0] + n[0]; ++a)
    for (auto b = s[1]; b < s[1] + n[1]; ++b)
      for (auto c = s[2]; c < s[2] + n[2]; ++c)
        for (auto d = s[3]; d < s[3] + n[3]; ++d)
          indices.push_back(((a * shape.extent[1] + b) * shape.extent[2] + c) * shape.extent[3] +
                            d);
  return indices;
}

const std::vector<io::Shape> kShapes = {{1},          {7},         {1, 5},    {3, 4},
                                        {4, 1},       {2, 3, 4},   {1, 3, 1}, {2, 3, 2, 3},
                                        {2, 1, 3, 2}, {3, 2, 1, 1}};

TEST(BoxesOfRange, AreTheRangeInOrderForEveryRangeOfEveryShape) {
  for (const io::Shape& shape : kShapes) {
    for (std::int64_t begin = 0; begin <= shape.elements(); ++begin) {
      for (std::int64_t end = begin; end <= shape.elements(); ++end) {
        std::vector<std::int64_t> got, expected;
        const auto boxes = io::boxes_of_range(shape, {begin, end});
        for (const io::Box& box : boxes) {
          ASSERT_TRUE(io::inside(shape, box));
          const auto part = flat_indices(shape, box);
          got.insert(got.end(), part.begin(), part.end());
        }
        for (auto i = begin; i < end; ++i) expected.push_back(i);
        ASSERT_EQ(got, expected) << io::to_string(shape.extents()) << " " << begin << " " << end;
        ASSERT_LE(boxes.size(), static_cast<std::size_t>(2 * shape.axes - 1));
      }
    }
  }
}

TEST(BoxesOfRange, HoldBeyond32Bits) {  // trap 55
  const io::Shape shape({300'000, 20'000});
  const auto boxes = io::boxes_of_range(shape, {5'000'000'001, 5'999'999'999});
  ASSERT_EQ(boxes.size(), 3U);
  EXPECT_EQ(boxes[0], io::Box({250'000, 1}, {1, 19'999}));
  EXPECT_EQ(boxes[1], io::Box({250'001, 0}, {49'998, 20'000}));
  EXPECT_EQ(boxes[2], io::Box({299'999, 0}, {1, 19'999}));
}

TEST(ForEachRun, CopiesExactlyTheCommonElements) {
  std::mt19937 random(7);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (int trial = 0; trial < 2000; ++trial) {
    const io::Shape shape({1 + below(3), 1 + below(4), 1 + below(4), 1 + below(5)});
    const auto random_box = [&] {
      io::Box box;
      for (std::size_t i = 0; i < 4; ++i) {
        box.start[i] = below(shape.extent[i]);
        box.count[i] = 1 + below(shape.extent[i] - box.start[i]);
      }
      return box;
    };
    const io::Box a = random_box(), b = random_box();
    const auto in_a = flat_indices(shape, a), in_b = flat_indices(shape, b);
    std::size_t expected = 0, copied = 0;
    for (const auto i : in_a) expected += std::count(in_b.begin(), in_b.end(), i);
    const auto both = intersect(a, b);
    ASSERT_EQ(both.has_value(), expected > 0);
    if (!both) continue;
    io::for_each_run(*both, a, b, [&](std::int64_t i, std::int64_t j, std::int64_t n) {
      for (std::int64_t k = 0; k < n; ++k)
        ASSERT_EQ(in_a[static_cast<std::size_t>(i + k)], in_b[static_cast<std::size_t>(j + k)]);
      copied += static_cast<std::size_t>(n);
    });
    ASSERT_EQ(copied, expected);
  }
}

TEST(FindMiscount, AgreesWithCountingElements) {  // trap 47
  std::mt19937 random(11);
  int right = 0, wrong = 0;
  for (int trial = 0; trial < 5000; ++trial) {
    const io::Shape& shape = kShapes[random() % kShapes.size()];
    const auto elements = shape.elements();
    // A partition into ranges, then, half of the time, one box dropped, doubled or moved.
    std::vector<io::Box> boxes;
    for (std::int64_t begin = 0; begin < elements;) {
      const auto end =
          begin + 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(elements - begin));
      for (const io::Box& box : io::boxes_of_range(shape, {begin, end})) boxes.push_back(box);
      begin = end;
    }
    std::shuffle(boxes.begin(), boxes.end(), random);
    switch (random() % 6) {
      case 0: boxes.pop_back(); break;
      case 1: boxes.push_back(boxes.front()); break;
      case 2: boxes.front() = boxes.back(); break;
      default: break;
    }
    std::vector<std::int64_t> times(static_cast<std::size_t>(elements), 0);
    for (const io::Box& box : boxes) {
      for (const auto i : flat_indices(shape, box)) ++times[static_cast<std::size_t>(i)];
    }
    const auto bad =
        std::find_if(times.begin(), times.end(), [](std::int64_t n) { return n != 1; });
    const auto found = io::find_miscount(shape, boxes);
    ASSERT_EQ(found.has_value(), bad != times.end());
    (found ? wrong : right) += 1;
    if (!found) continue;
    EXPECT_EQ(io::Box(shape).index_of(found->point), bad - times.begin());
    EXPECT_EQ(found->times, *bad);
  }
  EXPECT_GT(right, 1000);
  EXPECT_GT(wrong, 1000);
}

TEST(FindMiscount, AcceptsAPartitionThatNoCutDivides) {  // the pinwheel
  const io::Shape shape({3, 3});
  std::vector<io::Box> boxes = {io::Box({0, 0}, {1, 2}), io::Box({0, 2}, {2, 1}),
                                io::Box({2, 1}, {1, 2}), io::Box({1, 0}, {2, 1}),
                                io::Box({1, 1}, {1, 1})};
  EXPECT_FALSE(io::find_miscount(shape, boxes));
  boxes.pop_back();
  const auto found = io::find_miscount(shape, boxes);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->times, 0);
  EXPECT_EQ(found->point, (io::Point{0, 0, 1, 1}));
}

TEST(Inside, RefusesHostileBoxes) {
  const io::Shape shape({3, 4});
  const auto huge = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(io::inside(shape, io::Box({0, 0}, {3, 4})));
  EXPECT_FALSE(io::inside(shape, io::Box({0, 0}, {3, 5})));
  EXPECT_FALSE(io::inside(shape, io::Box({0, 0}, {0, 4})));
  EXPECT_FALSE(io::inside(shape, io::Box({-1, 0}, {1, 1})));
  EXPECT_FALSE(io::inside(shape, io::Box({1, 1}, {huge, huge})));
  EXPECT_FALSE(io::inside(shape, io::Box({huge, 0}, {huge, 1})));
  EXPECT_FALSE(io::inside(shape, io::Box({1, 0, 0}, {1, 1, 1})));
}

}  // namespace
}  // namespace tessera
