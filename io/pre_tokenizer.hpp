// How a tokenizer cuts text into words, within which the model finds tokens: the "pre_tokenizer" of
// a tokenizer.json.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.hpp"

namespace tessera::io {

/// Where a text that is encoded begins, which matters to tokenizers that put a space before it.
enum class TextStart {
  document,  // nothing precedes it
  token,     // a special token does
  text,      // other text does
};

class PreTokenizer {
 public:
  using Word = std::function<void(std::string_view)>;

  /// A text is a word.
  PreTokenizer() = default;
  /// DataError, naming the place, for one that is not known: known are Sequence, ByteLevel (as the
  /// last), Split, Metaspace, Whitespace, WhitespaceSplit, Punctuation, Digits, CharDelimiterSplit
  /// and BertPreTokenizer.
  explicit PreTokenizer(const JsonCursor& value);

  /// Whether tokens are made of bytes and not of characters.
  bool byte_level() const { return byte_level_; }
  /// Whether some text, such as spaces, is in no word.
  bool drops_text() const { return drops_text_; }
  /// Equal for those that cut all text alike.
  const std::string& description() const { return description_; }

  /// Calls `word` for each word, in order, none empty. Text need not be valid UTF-8.
  void cut(std::string_view text, TextStart start, const Word& word) const;

 private:
  /// A piece of the text; `first` if it is at its very beginning.
  using Piece = std::function<void(std::string_view piece, bool first)>;
  using Step =
      std::function<void(std::string_view text, bool first, TextStart start, const Piece& piece)>;

  void add(const JsonCursor& value, bool last);
  void add_byte_level(const JsonCursor& value);
  void add_split(const JsonCursor& value);
  void add_metaspace(const JsonCursor& value);
  void add_step(const std::string& description, Step step);
  void run(std::size_t step, std::string_view text, bool first, TextStart start,
           const Word& word) const;

  std::vector<Step> steps_;
  bool byte_level_ = false, drops_text_ = false;
  std::string description_;
};

}  // namespace tessera::io
