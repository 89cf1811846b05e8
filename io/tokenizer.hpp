// Text to token ids and back, by a Hugging Face tokenizer.json: byte-level BPE (the GPT-2 and Llama
// 3 families), of which bytes (a token is a byte) are the case without merges; BPE of characters
// with bytes for unknown ones (Llama 2, Mistral, Gemma); WordPiece (BERT); Unigram (T5,
// XLM-RoBERTa). Any bytes can be encoded, also text that is not valid UTF-8. Byte-level BPE gives
// them back exactly; others lose what they normalize, and take a broken byte for U+FFFD.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/pre_tokenizer.hpp"

namespace tessera::io {

struct SpecialFrame;

/// Large vocabularies reach 40 MB.
constexpr std::int64_t kLargestTokenizerFile = std::int64_t{256} << 20;

struct EncodeRules {
  TextStart start = TextStart::document;
  /// Whether special tokens that the text spells are those tokens. Others that were added to the
  /// vocabulary are found either way.
  bool special_tokens = true;
};

/// Ids agree with the `tokenizers` package, encode(text, add_special_tokens=False): tokens added to
/// the vocabulary ("<|endoftext|>") are found in the text; truncation, padding and post-processing
/// are ignored, but for frame(). Keeps a cache of words: one Tokenizer a thread.
class Tokenizer {
 public:
  static Tokenizer bytes();
  /// A tokenizer.json; DataError, naming file and place, for one that is damaged or that needs what
  /// is not supported.
  static Tokenizer open(const std::filesystem::path& path);
  /// The same from its text, as a checkpoint stores it; `name` is what errors call it.
  static Tokenizer parse(std::string json, const std::string& name);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// One more than the largest id.
  std::int64_t vocab() const;
  /// The token that ends a document: what was set, else one of the names that families use, else
  /// the only special token whose name says so ("[EOS]", "<end_of_sequence>"); none where there is
  /// none or where several do.
  std::optional<std::int32_t> end_of_text() const;
  void set_end_of_text(std::optional<std::int32_t> id);

  /// The id that stands for exactly this text; of several an added token's, then the lowest.
  std::optional<std::int32_t> id_of(std::string_view text) const;
  /// What id_of() finds an id by; empty if no token has it.
  std::string_view name_of(std::int32_t id) const;
  /// Sorted by id.
  std::vector<std::string> special_tokens() const;

  /// What makes the other give other ids, or give them another meaning, for people; empty if
  /// nothing does. Vocabularies, merges, added tokens and the cutting into words count, the JSON's
  /// form and the end of documents do not.
  std::string difference(const Tokenizer& other) const;

  /// Appends the ids of `text`.
  void encode(std::string_view text, std::vector<std::int32_t>& ids, EncodeRules rules = {});
  std::vector<std::int32_t> encode(std::string_view text);

  /// Calls `word` for each piece of the text within which bytes are merged: what the patterns make
  /// of the text between added tokens. Nothing is called for those.
  void for_each_word(std::string_view text, const std::function<void(std::string_view)>& word);

  /// Whether decoding gives back any text that was encoded, but for spaces put before it: tokens
  /// are made of bytes, and nothing is normalized or left out.
  bool exact() const;

  /// Whether tokens are made of bytes, so that a space before a word is a part of its tokens.
  bool byte_level() const;

  /// What the tokenizer's post-processor puts around a text (io/tokenizer_json.hpp).
  const SpecialFrame& frame() const;

  /// The bytes that an id stands for behind other tokens; none if no token has that id. For text
  /// that arrives token by token see Utf8Stream.
  std::string_view decode(std::int32_t id) const;
  /// By id, how many bytes of text it stands for there; special tokens are no text.
  std::vector<std::int32_t> text_bytes() const;
  /// A whole text, from its begin.
  std::string decode(std::span<const std::int32_t> ids) const;

  /// The text that parse() takes.
  const std::string& json() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::io
