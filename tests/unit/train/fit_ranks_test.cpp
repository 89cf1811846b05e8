// A checkpoint's deck on other numbers of ranks than it was written for.
#include "train/state/fit_ranks.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "unit/deck/deck_text.hpp"

namespace tessera::train {
namespace {

using deck::expect_contains;

/// The small deck (2 layers, 4 heads, batches of 8) as a checkpoint says it.
SavedDeck saved(std::vector<std::string> sets) {
  return {.text = to_toml(deck::small_deck(sets).deck), .name = "step_00000010"};
}

/// "pipeline x tensor, micro-batch"
std::string layout(const deck::LoadedDeck& loaded) {
  const auto& d = loaded.deck;
  return fmt::format("{} x {}, {}", d.parallel.pipeline, d.parallel.tensor, d.batch.micro);
}

std::string fitted(const SavedDeck& from, std::int64_t ranks, std::vector<std::string> sets = {}) {
  return layout(fit_to_ranks(from, sets, ranks).loaded);
}

std::string refusal(const SavedDeck& from, std::int64_t ranks, std::vector<std::string> sets = {}) {
  try {
    fit_to_ranks(from, sets, ranks);
    ADD_FAILURE() << "nothing was thrown";
    return "";
  } catch (const DeckError& e) {
    return e.what();
  }
}

TEST(FitToRanks, KeepsALayoutThatFits) {
  const SavedDeck from = saved({"parallel.tensor=2", "parallel.pipeline=2", "parallel.data=2",
                                "batch.micro=2", "fault.inject=[\"kill rank=7 step=3\"]"});
  for (const std::int64_t ranks : {4, 8}) {
    const FittedDeck got = fit_to_ranks(from, {}, ranks);
    EXPECT_EQ(layout(got.loaded), "2 x 2, 2");
    EXPECT_EQ(got.note, "");
    EXPECT_EQ(got.loaded.deck.batch.global, 8);
  }
}

TEST(FitToRanks, ChoosesTheNearestThatFits) {
  const SavedDeck wide = saved(
      {"parallel.tensor=4", "parallel.pipeline=2", "batch.micro=2", "parallel.placement=[0, 1]"});
  EXPECT_EQ(fitted(wide, 8), "2 x 4, 2");
  EXPECT_EQ(fitted(wide, 4), "1 x 4, 2");
  EXPECT_EQ(fitted(wide, 2), "1 x 2, 2");
  EXPECT_EQ(fitted(wide, 1), "1 x 1, 2");
  const FittedDeck two = fit_to_ranks(wide, {}, 2);
  expect_contains(two.note,
                  "2 ranks evaluate as data 1 x pipeline 1 x tensor 2 with batch.micro = 2");
  expect_contains(two.note, "the checkpoint's deck has pipeline 2 x tensor 4");
}

TEST(FitToRanks, MakesMicroBatchesSmallerForMoreDataRanks) {
  const SavedDeck from = saved({"batch.micro=4"});
  EXPECT_EQ(fitted(from, 2), "1 x 1, 4");
  EXPECT_EQ(fitted(from, 4), "1 x 1, 2");
  EXPECT_EQ(fitted(from, 8), "1 x 1, 1");
  EXPECT_EQ(fitted(from, 16), "1 x 2, 1") << "8 sequences are not for 16 data ranks";
}

TEST(FitToRanks, EvaluatesTheFirstBatchOfARamp) {
  const SavedDeck from = saved({"batch.ramp=[[1, 2], [3, 7]]", "batch.global=8"});
  const FittedDeck got = fit_to_ranks(from, {}, 2);
  EXPECT_EQ(layout(got.loaded), "1 x 1, 1");
  EXPECT_EQ(got.loaded.deck.batch.global, 2);
}

TEST(FitToRanks, NeverChangesWhatIsSet) {
  const SavedDeck from = saved({"parallel.tensor=2", "parallel.pipeline=2", "batch.micro=4"});
  EXPECT_EQ(fitted(from, 2, {"parallel.tensor=1"}), "2 x 1, 4");
  EXPECT_EQ(fitted(from, 2, {" parallel.pipeline = 1"}), "1 x 2, 4");
  EXPECT_EQ(
      fitted(from, 2,
             {"batch.micro=8", "parallel.tensor=1", "parallel.pipeline=1", "batch.global=16"}),
      "1 x 1, 8");
  expect_contains(refusal(from, 2, {"parallel.tensor=4"}), "parallel.tensor");
  expect_contains(refusal(from, 4, {"parallel.data=3"}), "parallel.data");
  expect_contains(refusal(from, 2, {"paralel.data=3"}), "--set #1: ");
}

TEST(FitToRanks, SaysWhatWouldFit) {
  const SavedDeck from = saved({});
  const std::string five = refusal(from, 5);
  expect_contains(five, "no layout of 5 ranks fits");
  expect_contains(five, "--set batch.global=5 ");
  expect_contains(five, "or 4 ranks");
  EXPECT_EQ(fitted(from, 5, {"batch.global=5"}), "1 x 1, 1");
}

/// Layout mode has the same bits on other grids, but not with other micro-batches.
TEST(FitToRanks, KeepsTheBitsOfLayoutMode) {
  const SavedDeck from = saved({"run.reproducible=layout", "run.reproducible_tensor=2",
                                "batch.micro=4", "parallel.tensor=2", "parallel.pipeline=2"});
  for (const std::int64_t ranks : {1, 2, 4, 8}) {
    const deck::Deck d = fit_to_ranks(from, {}, ranks).loaded.deck;
    EXPECT_EQ(d.batch.micro, 4);
    EXPECT_EQ(d.batch.global, 8);
    EXPECT_EQ(d.run.reproducible_tensor, 2);
  }
  EXPECT_EQ(fitted(from, 2), "1 x 2, 4") << "not tensor = 4, which layout mode does not cover";
  expect_contains(refusal(from, 16), "or 8 ranks");
}

}  // namespace
}  // namespace tessera::train
