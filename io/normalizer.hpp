// What a tokenizer changes in a text before it is cut into words: the "normalizer" of a
// tokenizer.json.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.hpp"

namespace tessera::io {

class Normalizer {
 public:
  /// Changes nothing.
  Normalizer() = default;
  /// DataError, naming the place, for one that is not known: known are Sequence, BertNormalizer,
  /// NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Prepend, Replace and Precompiled.
  explicit Normalizer(const JsonCursor& value);

  bool empty() const { return steps_.empty(); }
  /// Of valid UTF-8. `begins`: no other text precedes it, so that what is put before a text is.
  std::string apply(std::string text, bool begins) const;
  /// Equal for normalizers that do the same in the same way.
  const std::string& description() const { return description_; }

 private:
  using Step = std::function<std::string(std::string text, bool begins)>;
  void add(const JsonCursor& value);
  void add_bert(const JsonCursor& value);

  std::vector<Step> steps_;
  std::string description_;
};

}  // namespace tessera::io
