// Questions of multiple choice: what lines are refused, how they become tokens, and steps of them.
#include <gtest/gtest.h>

#include "core/error.hpp"
#include "data/questions.hpp"

namespace tessera::data {
namespace {

using Ids = std::vector<std::int32_t>;

std::string refusal_of(const std::string& text) {
  try {
    parse_questions(text, "q.jsonl");
  } catch (const DataError& e) {
    return e.what();
  }
  return "";
}

TEST(Questions, AreLinesOfJson) {
  const auto all = parse_questions(
      "{\"context\": \"a \", \"choices\": [\"b\", \"c\"], \"answer\": 1, \"more\": []}\n\n"
      "  {\"context\": \"\", \"choices\": [\"x\", \"y\", \"z\"], \"answer\": \"C\"}",
      "q.jsonl");
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].context, "a ");
  EXPECT_EQ(all[0].choices, (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(all[0].answer, 1);
  EXPECT_EQ(all[0].line, 1);
  EXPECT_EQ(all[1].answer, 2);
  EXPECT_EQ(all[1].line, 3);
}

TEST(Questions, OfAnotherFormAreRefused) {
  const std::string good = "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 0}\n";
  const auto expect = [&](const std::string& line, const std::string& text) {
    const std::string said = refusal_of(good + line);
    EXPECT_NE(said.find("q.jsonl:2: "), said.npos) << said;
    EXPECT_NE(said.find(text), said.npos) << said;
    EXPECT_NE(said.find("a line is {\"context\""), said.npos) << said;
  };
  expect("{\"context\": \"a\"", "");
  expect("[]", "expected an object");
  expect("{\"choices\": [\"b\", \"c\"], \"answer\": 0}", "\"context\" is missing");
  expect("{\"context\": 3, \"choices\": [\"b\", \"c\"], \"answer\": 0}", "found 3");
  expect("{\"context\": \"a\", \"choices\": [\"b\"], \"answer\": 0}",
         "$.choices: expected an array of 2 or more texts");
  expect("{\"context\": \"a\", \"choices\": [\"b\", \"\"], \"answer\": 0}",
         "$.choices[1]: expected a text that is not empty");
  for (const char* answer : {"2", "-1", "\"C\"", "\"a\"", "\"AB\"", "1.5", "true"}) {
    expect(std::string("{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": ") + answer +
               "}",
           "$.answer: expected 0 to 1 or \"A\" to \"B\", one of the 2 of \"choices\"");
  }
  EXPECT_NE(refusal_of(" \n").find("q.jsonl: no questions"), std::string::npos);
}

// As lm-evaluation-harness has it: white space at a context's end belongs to the choice, and what
// the whole has more than the context is the choice.
TEST(Questions, AreEncodedWithTheirChoices) {
  auto bytes = io::Tokenizer::bytes();
  const Question question{.context = "ab \n", .choices = {"c", " d"}, .line = 4};
  auto all = encode_choices(question, bytes, ContextBegin::special_tokens, "q");
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].tokens, (Ids{'a', 'b', ' ', '\n', 'c'}));
  EXPECT_EQ(all[0].context, 2);
  EXPECT_EQ(all[1].tokens, (Ids{'a', 'b', ' ', '\n', ' ', 'd'}));

  auto gpt2 =
      io::Tokenizer::open(std::string(TESSERA_SOURCE_DIR) + "/tests/data/tokenizers/gpt2.json");
  all = encode_choices({.context = "the ", .choices = {"dog", "quick"}}, gpt2, ContextBegin::text,
                       "q");
  const auto the = gpt2.encode("the");
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(all[i].tokens, gpt2.encode(i == 0 ? "the dog" : "the quick"));
    EXPECT_EQ(all[i].context, std::ssize(the));
  }
}

TEST(Questions, WithoutAContextBeginWithASpecialToken) {
  auto bytes = io::Tokenizer::bytes();
  const Question question{.context = " ", .choices = {"c", "d"}, .line = 4};
  try {
    encode_choices(question, bytes, ContextBegin::text, "q");
    FAIL();
  } catch (const DataError& e) {
    EXPECT_TRUE(std::string(e.what()).starts_with("q:4: \"context\" has no tokens")) << e.what();
  }
  bytes.set_end_of_text(10);
  const auto all = encode_choices(question, bytes, ContextBegin::text, "q");
  EXPECT_EQ(all[1].tokens, (Ids{10, ' ', 'd'}));
  EXPECT_EQ(all[1].context, 1);
}

// On every layout each choice is one rank's sample, in the tally of its place in the step.
TEST(Questions, BecomeSamplesOfSteps) {
  const std::vector<ChoiceTokens> choices{{{1, 2, 3}, 1}, {{4, 5, 6, 7, 8}, 3}, {{9, 10}, 1}};
  const BatchShare whole{.sequence = 4, .micro = 2, .micro_batches = 2};
  const StepTokens step = choices_step(choices, 0, whole);
  EXPECT_EQ(step.tokens, (Ids{1, 2, 0, 0, 4, 5, 6, 7, 9, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(step.targets, (Ids{2, 3, -1, -1, -1, -1, 7, 8, 10, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(step.counted, (std::vector<std::int64_t>{2, 2, 1, 0}));
  EXPECT_EQ(step.tallies, (Ids{0, 1, 2, 3}));
  EXPECT_EQ(step.count_by_tally(4), step.counted);
  EXPECT_EQ(std::vector(step.documents.begin(), step.documents.begin() + 8),
            (Ids{0, 2, 0, 2, 2, 4, 2, 4}));
  EXPECT_EQ(step.documents.size(), 2 * step.tokens.size());
  for (const auto reduce : {ReduceWhen::step, ReduceWhen::micro}) {
    std::vector<std::int64_t> counted(4);
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      const StepTokens part = choices_step(choices, 0,
                                           {.data_ranks = 2,
                                            .data_rank = rank,
                                            .sequence = 4,
                                            .micro = 1,
                                            .micro_batches = 2,
                                            .reduce = reduce});
      for (std::size_t i = 0; i < 2; ++i) {
        const auto place = static_cast<std::size_t>(part.tallies[i]);
        EXPECT_EQ(part.samples[i], part.tallies[i]);
        EXPECT_TRUE(std::equal(part.tokens.begin() + 4 * static_cast<std::ptrdiff_t>(i),
                               part.tokens.begin() + 4 * static_cast<std::ptrdiff_t>(i + 1),
                               step.tokens.begin() + 4 * static_cast<std::ptrdiff_t>(place)));
        counted[place] += part.counted[i];
      }
    }
    EXPECT_EQ(counted, step.counted);
  }
}

}  // namespace
}  // namespace tessera::data
