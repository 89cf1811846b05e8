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
  std::int64_t samples = 1;  // of a prompt
  std::int64_t batch = 16;   // sequences that a rank goes on with at once
  std::vector<std::string> stop;
  bool log_probabilities = false;
  train::SamplingRule rule;
  DType type = DType::f32;
  std::optional<deck::Backend> backend;
  bool finite = true;  // the weights must be
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

/// What a process has to itself.
struct OwnMachine {
  backend::Backend backend;
  std::int64_t processes = 1;  // with whom it shares its node's memory
  int rank = 0;                // 0 shows progress
};

/// MemoryError where the host's memory, if the model is to be there, has not enough left for it and
/// the keys and values of so many sequences of `most` tokens. Before any rank of the node loads it.
void check_memory(const GenerateOptions& o, const ModelSource& source, const OwnMachine& machine,
                  std::int64_t slots, std::int64_t most);
/// The model in memory, with slots for `slots` sequences of `most` tokens.
train::Generator make_generator(const GenerateOptions& o, const Speaker& speaker,
                                const OwnMachine& machine, std::int64_t slots, std::int64_t most);

}  // namespace tessera::verbs
