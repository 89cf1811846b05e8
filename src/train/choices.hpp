// Questions of multiple choice, answered by a trained model.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "data/questions.hpp"
#include "deck/load.hpp"
#include "train/job.hpp"

namespace tessera::train {

struct ChoicesOptions {
  std::filesystem::path questions;  // JSON lines, as data::parse_questions() reads them
  std::string tokenizer;            // "bytes" or a tokenizer.json; empty: the model's
  data::ContextBegin begin = data::ContextBegin::text;
  std::filesystem::path out;       // of a JSON line a question; empty: none
  std::string weights = "master";  // as of TrainedEngine
};

/// What was answered rightly of several questions.
struct Accuracy {
  std::int64_t right = 0, questions = 0;
  double share() const { return static_cast<double>(right) / static_cast<double>(questions); }
  /// Of the share, by the answers' sample variance; nothing for a single question.
  std::optional<double> standard_error() const;
};

/// Answers each question with the choice of the highest log likelihood given its context, as a sum
/// over its tokens (acc), and divided by the choice's bytes (acc_norm); of several such choices
/// with the first. Prints both on rank 0. Collective. Throws as TrainedEngine does, and DataError
/// for a file that holds no such questions and for a choice that is longer, with its context, than
/// the model's context, on every rank.
void answer_choices(const deck::LoadedDeck& loaded, const Job& job, const ChoicesOptions& options);

}  // namespace tessera::train
