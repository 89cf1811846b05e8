// Prompts that a model is to answer: lines of JSON files, in tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/mpi/control.hpp"
#include "deck/load.hpp"
#include "io/document_reader.hpp"
#include "io/tokenizer.hpp"

namespace tessera::data {

/// A prompt in tokens. `special_tokens`: behind those that the tokenizer's post-processor puts
/// before a text, but not where the prompt spells them.
std::vector<std::int32_t> encode_prompt(std::string_view text, bool special_tokens,
                                        io::Tokenizer& tokenizer);

/// The tokens that end an answer: those that end the documents that the model learned from, and
/// what a template learns. `chat` may be null.
std::vector<std::int32_t> answer_ends(const io::Tokenizer& tokenizer, const io::ChatTemplate* chat);

/// What a prompt is, of a line.
struct PromptRules {
  std::string field;  // the member that it is; empty: "prompt", or what a template looks for
  const io::ChatTemplate* chat = nullptr;  // what makes it of the line, after bind()
  bool special_tokens = true;              // as encode_prompt()
  std::int64_t longest = 0;                // tokens
  std::string limit;                       // what that is, for people: "the model's context"
};

/// Calls for each prompt of the files, in their order. DataError, with file and line, for one
/// without tokens, and for one of more than rules.longest; as io::read_part() for other lines.
void read_prompts(std::span<const std::filesystem::path> files, const PromptRules& rules,
                  io::Tokenizer& tokenizer,
                  const std::function<void(const io::Document& document,
                                           std::vector<std::int32_t> tokens)>& prompt);

/// The prompts of a run that answers them, data.train, and what reads and writes their tokens: the
/// tokenizer of the model that it begins with.
struct Prompts {
  struct Prompt {
    std::string line;  // of JSON
    std::vector<std::int32_t> tokens;
    std::string answer;  // the right one, where answers are compared with it
  };
  std::vector<Prompt> all;
  io::Tokenizer tokenizer;
  std::vector<std::int32_t> ends;  // an answer ends with one of these tokens
};
/// DataError where a file or the tokenizer cannot be used, for a prompt that leaves no room for an
/// answer in a sequence, and for a line that lacks the right answer where one is needed.
Prompts open_prompts(const deck::LoadedDeck& loaded);
/// Likewise for a run. Collective; throws on every rank, CommError where ranks see other prompts.
Prompts open_prompts(const deck::LoadedDeck& loaded, const comm::Control& control);

}  // namespace tessera::data
