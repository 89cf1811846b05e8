// What a rank must have is said before it is taken.

#include <gtest/gtest.h>

#include <cstdlib>

#include "core/error.hpp"
#include "setup/budget.hpp"
#include "setup/generation.hpp"
#include "setup/groups.hpp"
#include "setup/shapes.hpp"
#include "setup/threads.hpp"
#include "unit/deck/deck_text.hpp"

namespace tessera::setup {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

TEST(CheckGpu, SaysHowMuchIsMissingAndWhatToDo) {
  const deck::Deck deck = deck::small_deck().deck;
  const Mesh mesh{.tensor = 1, .data = 2, .pipeline = 1};
  const plan::ArenaBytes arenas{300 * kMiB, 200 * kMiB, 5000 * kMiB};  // the last is the host's
  setup::check_gpu(deck, mesh, arenas, {.in_use = 1548 * kMiB, .total = 2048 * kMiB});
  setup::check_gpu(deck, mesh, arenas, {});  // a CPU
  try {
    setup::check_gpu(deck, mesh, arenas, {.in_use = 1558 * kMiB, .total = 2048 * kMiB});
    FAIL() << "10 MiB too much";
  } catch (const MemoryError& e) {
    const std::string what = e.what();
    for (const char* text : {"needs 500.00 MiB, 10.00 MiB more than the 490.00 MiB that are free "
                             "of its GPU's 2.00 GiB",
                             "nvidia-smi", "300.00 MiB in arena state", "200.00 MiB in arena step",
                             "recompute.policy", "zero.stage"})
      EXPECT_NE(what.find(text), what.npos) << what;
  }
}

TEST(Groups, AreShownWithWhatTheyHave) {
  const std::string text = groups_text(
      deck::small_deck({"optimizer.weight_decay=0.25",
                        "optimizer.groups=[{match=\"block.1.*\", name=\"last\", lr_factor=0.5}, "
                        "{match=\"vocabulary.*\", weight_decay=0}]"})
          .deck);
  // Of a block of 32: four norms' vectors, q, k, v, out, up and down with their biases.
  EXPECT_EQ(
      text,
      "optimizer.groups                   tensors        elements   lr factor   weight decay\n"
      "  last                                   6           12288         0.5           0.25\n"
      "  last                                  10             416         0.5              0\n"
      "  vocabulary.*                           1            2080           1              0\n"
      "  (other matrices)                       7           12800           1           0.25\n"
      "  (other vectors)                       12             480           1              0\n");
  EXPECT_EQ(groups_text(deck::small_deck().deck), "");
}

TEST(Groups, HaveParametersAndShareNone) {
  const auto refusal = [](const std::string& groups) -> std::string {
    try {
      check_groups(deck::small_deck({"optimizer.groups=" + groups}));
      return "";
    } catch (const DeckError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(refusal("[{match=\"*.bias\"}, {match=\"*.weight\"}]"), "");
  deck::expect_contains(refusal("[{match=\"blok.*\", name=\"blocks\"}]"),
                        "--set #1: optimizer.groups: \"blok.*\" (\"blocks\") matches no parameter "
                        "(names are like block.0.");
  deck::expect_contains(refusal("[{match=\"block.*\"}, {match=\"*.bias\"}]"),
                        "optimizer.groups: \"block.*\" and \"*.bias\" both match block.0.");
}

/// OMP_NUM_THREADS as it was before the test.
class Threads : public testing::Test {
 protected:
  Threads() {
    if (const char* text = std::getenv("OMP_NUM_THREADS")) before_ = text;
  }
  ~Threads() override {
    if (before_) {
      setenv("OMP_NUM_THREADS", before_->c_str(), 1);
    } else {
      unsetenv("OMP_NUM_THREADS");
    }
  }
  static int count(const char* variable, const deck::RunSection& run = {}) {
    setenv("OMP_NUM_THREADS", variable, 1);
    return setup::thread_count(run, 7);
  }

 private:
  std::optional<std::string> before_;
};

TEST_F(Threads, AreThoseOfTheDeckOrOfTheEnvironmentOrTheCores) {
  EXPECT_EQ(count("3"), 3);
  EXPECT_EQ(count(" 3 "), 3);
  EXPECT_EQ(count("3,2"), 3) << "2 is for parallel regions within";
  EXPECT_EQ(count(""), 7);
  deck::RunSection run;
  run.threads = 5;
  EXPECT_EQ(count("all", run), 5);
}

TEST_F(Threads, SaysThatTheEnvironmentGivesNoNumber) {
  for (const char* text : {"all", "0", "-2", "3x", "2.5", " ", "99999999999", "4097"}) {
    try {
      count(text);
      ADD_FAILURE() << text;
    } catch (const DeckError& e) {
      EXPECT_NE(std::string(e.what()).find(fmt::format("OMP_NUM_THREADS = \"{}\"", text)),
                std::string::npos)
          << e.what();
    }
  }
}

using Extents = std::vector<std::pair<std::int64_t, std::int64_t>>;

/// Sequence and micro-batches of the shapes of a purpose.
Extents extents(const std::vector<plan::PlanShape>& shapes, plan::PlanPurpose purpose) {
  Extents all;
  for (const plan::PlanShape& shape : shapes) {
    if (shape.purpose == purpose) all.emplace_back(shape.sequence, shape.micro_batches);
  }
  return all;
}

// A plan for what steps there are, not for every length with every batch.
TEST(Shapes, AreThoseOfThePhases) {
  using plan::PlanPurpose;
  const auto shapes_of = [](const std::vector<std::string>& sets) {
    return training_shapes(deck::small_deck(sets).deck, 2);
  };
  const auto shapes = shapes_of({"batch.curriculum={start=4, end=12, steps=8, round=4}",
                                 "batch.ramp=[[6, 16], [20, 32]]", "data.validation=[\"v\"]"});
  const Extents steps = {{12, 8}, {4, 4}, {8, 4}, {8, 8}, {12, 16}};
  EXPECT_EQ(extents(shapes, PlanPurpose::train), steps) << "first one of the longest sequences";
  EXPECT_EQ(extents(shapes, PlanPurpose::train_snapshot), steps);
  EXPECT_EQ(extents(shapes, PlanPurpose::evaluate), (Extents{{16, 4}})) << "of batch.sequence";
  const auto largest = largest_shapes(shapes);
  ASSERT_EQ(largest.size(), 2U);
  EXPECT_EQ(extents(largest, PlanPurpose::train_snapshot), (Extents{{12, 16}}));
  EXPECT_EQ(extents(largest, PlanPurpose::evaluate), (Extents{{16, 4}}));
  EXPECT_EQ(extents(shapes_of({"batch.ramp=[[6, 16]]"}), PlanPurpose::train),
            (Extents{{16, 4}, {16, 8}}));
}

// In a CPU's products of 64 rows and more a row is what it is in any others.
TEST(Shapes, OfPromptsThatGoTogether) {
  const auto shapes_of = [](std::int64_t slots, std::int64_t room, Prefill prefill) {
    Extents all;
    for (const plan::PlanShape& shape :
         together_shapes({.slots = slots, .room = room, .prefill = prefill})) {
      EXPECT_EQ(shape.slots, slots);
      EXPECT_EQ(shape.micro_batches, 1);
      all.emplace_back(shape.sequence, shape.micro);
    }
    return all;
  };
  EXPECT_EQ(shapes_of(9, 2048, Prefill::several),
            (Extents{{64, 8}, {64, 4}, {64, 2}, {128, 4}, {128, 2}, {256, 2}}));
  EXPECT_EQ(shapes_of(3, 100, Prefill::several), (Extents{{64, 2}, {100, 2}}));
  for (const Prefill other : {Prefill::one, Prefill::all, Prefill::all_alike})
    EXPECT_EQ(shapes_of(9, 2048, other), Extents{});
  EXPECT_EQ(shapes_of(1, 2048, Prefill::several), Extents{});
  EXPECT_EQ(shapes_of(9, 40, Prefill::several), Extents{});

  const auto prefill_of = [](const std::vector<std::string>& sets) {
    return decoder_size(deck::small_deck(sets).deck, 8, 128).prefill;
  };
  EXPECT_EQ(prefill_of({}), Prefill::several);
  EXPECT_EQ(prefill_of({"run.reproducible=layout"}), Prefill::one);
  EXPECT_EQ(prefill_of({"moe.experts=4", "model.bias=false"}), Prefill::one);
  EXPECT_EQ(prefill_of({"offload.parameters=host"}), Prefill::all);
}

// Pages are shared: what a file's sequences can fill at once, and less where somebody says so.
TEST(Shapes, OfPagesThatSequencesShare) {
  const DecoderSize three{.slots = 3, .room = 200};
  EXPECT_EQ(decoder_shapes(three).front().pages, 3 * 4) << "all slots full";
  EXPECT_EQ(pages_for({64, 65, 1, 200, 129}, three, {}), 4 + 3 + 2);
  EXPECT_EQ(pages_for({64, 65}, three, {}), 1 + 2);
  EXPECT_EQ(pages_for({64, 65, 1, 200, 129}, three, 500), 7) << "whole pages";
  EXPECT_EQ(pages_for({64, 65, 1, 200, 129}, three, 1), 4) << "the longest one fits";
  EXPECT_EQ(pages_for({64, 65, 1, 200, 129}, three, 10'000), 9);
  // Two stages pass two micro-batches of two on to each other.
  EXPECT_EQ(pages_for({1, 1, 1, 1, 1}, {.slots = 3, .room = 9, .micro_batches = 2}, {}), 4);
  DecoderSize some = three;
  some.pages = 7;
  for (const plan::PlanShape& shape : decoder_shapes(some)) EXPECT_EQ(shape.pages, 7);

  const auto rollout_pages = [](const std::vector<std::string>& sets) {
    std::vector<std::string> all{"task.kind=grpo", "rollout.tokens=9", "rollout.slots=5",
                                 "model.init_from=hf"};
    all.insert(all.end(), sets.begin(), sets.end());
    const deck::Deck deck = deck::small_deck(all).deck;
    return std::pair{rollout_size(deck).pages, kernels::pages_of(deck.batch.sequence)};
  };
  const auto [all, each] = rollout_pages({});
  EXPECT_EQ(all, 5 * each);
  EXPECT_EQ(rollout_pages({"rollout.cache_tokens=130"}).first, std::min<std::int64_t>(2, all));
}

}  // namespace
}  // namespace tessera::setup
