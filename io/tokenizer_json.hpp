// What a tokenizer.json says, checked: every setting is either understood or refused by name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/added_tokens.hpp"
#include "io/bpe_training.hpp"
#include "io/normalizer.hpp"
#include "io/pre_tokenizer.hpp"
#include "io/token_model_json.hpp"
#include "io/token_texts.hpp"

namespace tessera::io {

/// What a tokenizer puts around a text that is encoded with special tokens.
struct SpecialFrame {
  std::vector<std::int32_t> before, behind;
};

struct TokenizerDefinition {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  TokenModel model;
  std::vector<AddedToken> added;
  std::unordered_map<std::int32_t, std::string> names;  // by id; of tokens of bytes those bytes
  TokenTexts texts;                                     // what each id stands for
  SpecialFrame frame;
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
