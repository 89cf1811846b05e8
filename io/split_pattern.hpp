// The regular expression with which a tokenizer cuts text into words before merging bytes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace tessera::io {

/// A compiled Unicode pattern. Text need not be valid UTF-8: a broken byte is a piece of its own.
/// Unicode's tables are those of the PCRE2 library: characters newer than it count as unassigned.
/// Holds the scratch of a match: one thread at a time.
class SplitPattern {
 public:
  /// DataError, naming `place`, if the pattern is not valid.
  SplitPattern(std::string_view pattern, std::string place);
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;
  ~SplitPattern();

  const std::string& text() const;

  using Piece = std::function<void(std::string_view piece, bool match)>;
  /// Cuts `text` into the matches and what lies between them, in order, none empty. DataError if
  /// the pattern needs too many steps on this text.
  void cut(std::string_view text, const Piece& piece);

 private:
  void cut_valid(std::string_view text, const Piece& piece);

  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace tessera::io
