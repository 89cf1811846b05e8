#include "train/confusion.hpp"

#include <gtest/gtest.h>

#include <array>

namespace tessera::train {
namespace {

// By hand: of label 0 four of five are found, of label 1 one of two, and nothing is of label 2, for
// which one document was taken. Label 3 is neither.
TEST(Confusion, SaysAccuracyPrecisionAndRecall) {
  Confusion c;
  EXPECT_EQ(c.classes(), 0);
  c.add(std::array<std::int64_t, 16>{3, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  c.add(std::array<std::int64_t, 16>{1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  EXPECT_EQ(c.classes(), 4);
  EXPECT_EQ(c.total(), 7);
  EXPECT_DOUBLE_EQ(c.accuracy(), 5.0 / 7);
  EXPECT_DOUBLE_EQ(c.precision(0), 4.0 / 5);
  EXPECT_DOUBLE_EQ(c.recall(0), 4.0 / 5);
  EXPECT_DOUBLE_EQ(c.recall(1), 1.0 / 2);
  EXPECT_DOUBLE_EQ(c.precision(1), 1);
  EXPECT_DOUBLE_EQ(c.f1(1), 2.0 / 3);
  EXPECT_EQ(c.precision(2), 0);
  EXPECT_EQ(c.f1(3), 0);
  EXPECT_DOUBLE_EQ(c.f1(), (4.0 / 5 + 2.0 / 3 + 0) / 3);
}

TEST(Confusion, HasALineAClassAndCountsOfUpToTen) {
  Confusion two, many;
  two.add(std::array<std::int64_t, 4>{5, 1, 0, 4});
  const std::array<std::string, 2> names = {"neg", "pos"};
  EXPECT_EQ(to_lines(two, names),
            (std::vector<std::string>{
                "label      neg      pos  precision  recall     F1  (columns: taken for)",
                "neg          5        1     1.0000  0.8333  0.9091",
                "pos          0        4     0.8000  1.0000  0.8889"}));
  many.add(std::vector<std::int64_t>(121, 1));
  const auto lines = to_lines(many, {});
  ASSERT_EQ(lines.size(), 12U);
  EXPECT_EQ(lines[0], "label  precision  recall     F1");
  EXPECT_EQ(lines[11], "10        0.0909  0.0909  0.0909");
}

}  // namespace
}  // namespace tessera::train
