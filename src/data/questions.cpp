#include "data/questions.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "io/json.hpp"
#include "io/tokenizer_json.hpp"

namespace tessera::data {
namespace {

constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";
constexpr std::string_view kForm =
    R"(a line is {"context": "...", "choices": ["...", "..."], "answer": 0})";
constexpr std::int64_t kLetters = 26;

std::string letter(std::int64_t choice) { return {static_cast<char>('A' + choice)}; }

/// An index, or a letter.
std::int64_t parse_answer(const io::JsonCursor& value, std::int64_t choices) {
  std::int64_t answer = -1;
  if (value.is_integer()) {
    answer = value.integer();
  } else if (value.is_text() && value.text().size() == 1) {
    answer = value.text()[0] - 'A';
  }
  if (answer >= 0 && answer < choices) return answer;
  std::string allowed = fmt::format("0 to {}", choices - 1);
  if (choices <= kLetters) allowed += fmt::format(" or \"A\" to \"{}\"", letter(choices - 1));
  value.expected(fmt::format("{}, one of the {} of \"choices\"", allowed, choices));
}

Question parse_question(const io::JsonCursor& line) {
  Question question{.context = line["context"].text()};
  const auto choices = line["choices"];
  if (!choices.is_array() || choices.size() < 2) choices.expected("an array of 2 or more texts");
  choices.for_each_item([&](const io::JsonCursor& choice) {
    if (choice.text().empty()) choice.expected("a text that is not empty");
    question.choices.push_back(choice.text());
  });
  question.answer = parse_answer(line["answer"], choices.size());
  return question;
}

/// The tokens that begin a context.
std::vector<std::int32_t> beginning(const io::Tokenizer& tokenizer, ContextBegin begin) {
  return begin == ContextBegin::special_tokens ? tokenizer.frame().before
                                               : std::vector<std::int32_t>();
}

}  // namespace

std::vector<Question> parse_questions(std::string_view text, const std::string& file) {
  std::vector<Question> questions;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(kWhiteSpace) == line.npos) continue;
    try {
      const io::JsonDocument document(line, fmt::format("{}:{}", file, number));
      questions.push_back(parse_question(document.root()));
    } catch (const DataError& e) {
      throw DataError(fmt::format("{} ({})", e.what(), kForm));
    }
    questions.back().line = number;
  }
  if (questions.empty()) throw DataError(fmt::format("{}: no questions: {}", file, kForm));
  return questions;
}

std::vector<ChoiceTokens> encode_choices(const Question& question, io::Tokenizer& tokenizer,
                                         ContextBegin begin, const std::string& file) {
  const auto fail = [&](const std::string& what) {
    throw DataError(fmt::format("{}:{}: {}", file, question.line, what));
  };
  const std::size_t behind = question.context.find_last_not_of(kWhiteSpace) + 1;  // npos + 1 = 0
  const std::string context = question.context.substr(0, behind);
  std::vector<std::int32_t> before = beginning(tokenizer, begin);
  tokenizer.encode(context, before);
  const std::size_t of_context = before.size() - beginning(tokenizer, begin).size();
  if (before.empty()) {
    const auto& frame = tokenizer.frame().before;
    if (frame.empty() && !tokenizer.end_of_text())
      fail(
          "\"context\" has no tokens, and the tokenizer has none to begin a text with: give the "
          "choices something to go on from");
    before = frame.empty() ? std::vector{*tokenizer.end_of_text()} : frame;
  }
  std::vector<ChoiceTokens> all;
  for (std::size_t i = 0; i < question.choices.size(); ++i) {
    const auto whole = tokenizer.encode(question.context + question.choices[i]);
    if (whole.size() <= of_context) {
      fail(fmt::format("$.choices[{}]: adds no tokens to the {} of its context: give it other text",
                       i, of_context));
    }
    ChoiceTokens& choice = all.emplace_back(before, std::ssize(before));
    choice.tokens.insert(choice.tokens.end(),
                         whole.begin() + static_cast<std::ptrdiff_t>(of_context), whole.end());
  }
  return all;
}

StepTokens choices_step(std::span<const ChoiceTokens> choices, std::int64_t first,
                        const BatchShare& share) {
  StepTokens step{.first = first, .share = share};
  const auto length = static_cast<std::size_t>(share.sequence);
  for (std::int64_t i = 0; i < share.micro_batches * share.micro; ++i) {
    const std::int64_t place = share.first_sample(i / share.micro) + i % share.micro;
    const std::size_t begin = step.tokens.size();
    step.tokens.resize(begin + length);
    step.targets.resize(begin + length, -1);
    step.samples.push_back(first + place);
    step.tallies.push_back(static_cast<std::int32_t>(place));
    std::int64_t used = 0;
    if (first + place < std::ssize(choices)) {
      const auto& [tokens, context] = choices[static_cast<std::size_t>(first + place)];
      used = std::ssize(tokens) - 1;  // what the last one is target of
      TESSERA_CHECK(context >= 1 && used <= share.sequence, "a choice of {} tokens", used);
      std::copy_n(tokens.begin(), used, step.tokens.begin() + static_cast<std::ptrdiff_t>(begin));
      for (std::int64_t t = context - 1; t < used; ++t)
        step.targets[begin + static_cast<std::size_t>(t)] = tokens[static_cast<std::size_t>(t + 1)];
      step.counted.push_back(used - (context - 1));
    } else {
      step.counted.push_back(0);
    }
    step.add_documents(std::span(&used, used > 0 ? 1 : 0), share.sequence);
  }
  step.keep_chunks(true);
  return step;
}

}  // namespace tessera::data
