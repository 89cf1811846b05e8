// Questions of multiple choice: a context, and texts of which one goes on from it rightly. A model
// answers with the one that it finds likeliest.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/batches.hpp"
#include "io/tokenizer.hpp"

namespace tessera::data {

struct Question {
  std::string context;
  std::vector<std::string> choices;
  std::int64_t answer = 0;  // which of them is right
  std::int64_t line = 0;    // of the file, from 1
};

/// The questions of lines of JSON, {"context": "...", "choices": ["...", "..."], "answer": 0}; an
/// answer may also be a letter, "A" for the first. Blank lines are passed over. DataError, with
/// `file`, line, what is there and what is allowed, for any other line, and where there is none.
std::vector<Question> parse_questions(std::string_view text, const std::string& file);

/// A context with one of its choices.
struct ChoiceTokens {
  std::vector<std::int32_t> tokens;
  std::int64_t context = 0;  // so many of the first are the context; at least 1
};

/// What is before a context: a tokenizer's special tokens, or nothing.
enum class ContextBegin : std::uint8_t { text, special_tokens };

/// The choices of a question in tokens, as lm-evaluation-harness has them: white space at the
/// context's end becomes the begin of the choice, both are encoded together, and what is longer
/// than the context alone is the choice. A context without tokens begins with what the
/// post-processor puts before a text, or with the end of documents. DataError, naming `file` and
/// line, where neither is known and for a choice without tokens.
std::vector<ChoiceTokens> encode_choices(const Question& question, io::Tokenizer& tokenizer,
                                         ContextBegin begin, const std::string& file);

/// A data rank's part of a step over choices, of which the step begins with `first`. Each is a
/// sample, a document by itself, of which the choice's tokens are the targets; its place in the
/// step is its tally. Behind the last choice samples have no targets.
StepTokens choices_step(std::span<const ChoiceTokens> choices, std::int64_t first,
                        const BatchShare& share);

}  // namespace tessera::data
