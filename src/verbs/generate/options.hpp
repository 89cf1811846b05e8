// What the verb generate is told, and the files that it is made of.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "io/chat_template.hpp"
#include "io/tokenizer.hpp"
#include "train/generation/completions.hpp"
#include "train/job.hpp"
#include "verbs/model_source.hpp"

namespace tessera::verbs {

struct GenerateOptions {
  std::filesystem::path model;
  std::optional<std::string> prompt;  // one, continued on the terminal; or
  std::filesystem::path prompts;      // a file of them, continued into
  std::filesystem::path out;
  std::string field;  // of the file's lines; empty: "prompt", or what a template reads
  std::optional<std::string> chat;  // a template
  std::string tokenizer;
  bool accept_tokenizer = false;
  bool special_tokens = true;  // before the prompt, where the tokenizer's post-processor has some
  std::int64_t tokens = 200;
  std::int64_t samples = 1;                  // of a prompt
  std::int64_t batch = 16;                   // sequences that a rank goes on with at once
  std::optional<std::int64_t> cache_tokens;  // of all of them
  std::vector<std::string> stop;
  bool log_probabilities = false;
  train::SamplingRule rule;
  DType type = DType::f32;
  std::optional<deck::Backend> backend;
  std::vector<std::string> sets;  // keys of a deck, of layout and memory
  bool finite = true;             // the weights must be
  std::string weights;
};

/// The model and what reads and writes its tokens.
struct Speaker {
  ModelSource source;
  io::Tokenizer tokenizer;
  std::optional<io::ChatTemplate> chat;
};

/// The text of a token that the model drew. DataError where --tokenizer knows no such token, of a
/// model that has no tokenizer of its own to compare with.
std::string_view text_of(std::int32_t id, const GenerateOptions& o, const Speaker& speaker);

}  // namespace tessera::verbs
