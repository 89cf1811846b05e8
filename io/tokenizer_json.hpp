// What a tokenizer.json says, checked: every setting is either understood or refused by name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/bpe.hpp"
#include "io/bpe_training.hpp"
#include "io/split_pattern.hpp"

namespace tessera::io {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool special = false;
  bool normalized = false;  // looked for after those that are not
};

struct TokenizerDefinition {
  BpeModel model;
  std::vector<SplitPattern> patterns;  // each cuts the pieces of the one before
  bool prefix_space = false;           // a text that does not start with a space gets one
  std::vector<AddedToken> added;
  std::unordered_map<std::int32_t, std::string> bytes_of;  // what each id stands for
  std::int64_t vocab = 0;
};

/// DataError, naming `name` and the JSON path.
TokenizerDefinition parse_tokenizer_json(std::string_view text, const std::string& name);

/// A tokenizer.json in which each byte is a token, with its value as id: no merges, no added
/// tokens.
std::string byte_tokenizer_json();

/// A tokenizer.json of GPT-2's form: the bytes, in the order of their printable names, then what
/// each merge makes, in order, then the special token "<|endoftext|>". It cuts text by GPT-2's
/// pattern.
std::string gpt2_tokenizer_json(std::span<const LearnedMerge> merges);

/// The first of what makes two tokenizers give different ids or meanings, for people; empty if they
/// never do.
std::string difference_of(const TokenizerDefinition& one, const TokenizerDefinition& other);

}  // namespace tessera::io
