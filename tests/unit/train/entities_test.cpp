#include "train/entities.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace tessera::train {
namespace {

using Labels = std::vector<std::string_view>;

EntityCounts counts_of(const Labels& labels, const Labels& taken_for) {
  EntityCounts counts;
  counts.add(labels, taken_for);
  return counts;
}

TEST(Entities, AreToldByTheNamesOfClasses) {
  using Names = std::vector<std::string>;
  EXPECT_TRUE(name_entities(Names{"B-PER", "I-PER", "O"}));
  EXPECT_FALSE(name_entities(Names{"B-PER", "I-PER", "O", "X"}));
  EXPECT_FALSE(name_entities(Names{"NOUN", "VERB"}));
  EXPECT_FALSE(name_entities(Names{"O"}));
  EXPECT_FALSE(name_entities(Names{"B-", "O"}));
}

// The values are those of seqeval 1.2.2.
TEST(Entities, CountWhereTypeBeginAndEndAreRight) {
  const Labels labels{"O", "B-PER", "I-PER", "O", "B-LOC", "B-LOC", "I-LOC", "O"};
  EXPECT_EQ(counts_of(labels, labels).f1(), 1);
  EXPECT_EQ(counts_of(labels, labels).labelled(), 3);
  // One of another type, one too short, one that is none.
  const Labels taken{"O", "B-LOC", "I-LOC", "O", "B-LOC", "B-LOC", "O", "B-PER"};
  const EntityCounts some = counts_of(labels, taken);
  EXPECT_DOUBLE_EQ(some.precision(), 1.0 / 4);
  EXPECT_DOUBLE_EQ(some.recall(), 1.0 / 3);
  EXPECT_DOUBLE_EQ(some.f1(), 2.0 / 7);
}

TEST(Entities, BeginWithAnInnerWordThatGoesOnNone) {
  const Labels labels{"B-PER", "I-PER", "O", "B-LOC"};
  EXPECT_EQ(counts_of(labels, {"I-PER", "I-PER", "O", "I-LOC"}).f1(), 1);
  EXPECT_EQ(counts_of(labels, {"B-PER", "I-LOC", "O", "B-LOC"}).f1(), 2.0 / 5);
}

TEST(Entities, OfNothingAreZero) {
  EXPECT_EQ(EntityCounts().f1(), 0);
  EXPECT_EQ(counts_of({"O"}, {"O"}).precision(), 0);
  EntityCounts both = counts_of({"B-PER"}, {"O"});
  both.add(Labels{"B-PER"}, Labels{"B-PER"});
  EXPECT_DOUBLE_EQ(both.recall(), 0.5);
}

}  // namespace
}  // namespace tessera::train
