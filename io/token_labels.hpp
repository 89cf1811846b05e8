// The classes of documents, or of their words: beside PREFIX.bin and .idx an indexed dataset
// PREFIX.labels.bin and .labels.idx, of i32 elements, of which document d holds one, the label of
// the tokens' document d; and PREFIX.labels.json, {"key": "sentiment", "names": ["neg", "pos"]}:
// label i is names[i]. Names are sorted: integers by their value, others by their bytes. Where the
// .json says "of": "words", the pair has the documents and lengths of the tokens, and of a word's
// first token 1 + its label; all other tokens have 0. "closing" is how many tokens at the end of
// each document are no text, so that what shortens it keeps them.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/enums.hpp"
#include "io/text_reader.hpp"
#include "io/token_files.hpp"

namespace tessera::io {

/// Names are few: there is an output of the model for each.
constexpr std::int64_t kMostLabels = 1 << 20;

/// What a label is in the input. All must be of one kind.
enum class LabelKind { text, integer, boolean };

struct LabelValue {
  LabelKind kind = LabelKind::text;
  std::string name;
  auto operator<=>(const LabelValue&) const = default;
};

/// What has a label.
enum class LabelsOf { documents, words };

struct LabelNames {
  std::string key;  // where the labels come from
  std::vector<std::string> names;
  LabelsOf of = LabelsOf::documents;
  std::int64_t closing = 0;  // tokens at the end of each document that are no text

  /// The label of that name. Where no name is an integer, an integer is the label itself.
  std::optional<std::int32_t> find(const LabelValue& value) const;
};

/// PREFIX.labels, the prefix of the pair, and PREFIX.labels.json.
std::filesystem::path labels_prefix(const std::filesystem::path& prefix);
std::filesystem::path label_names_file(const std::filesystem::path& prefix);

/// DataError, naming file and place, for what is no labels.json.
LabelNames read_label_names(const std::filesystem::path& file);
/// Whole or not at all.
void write_label_names(const std::filesystem::path& file, const LabelNames& labels);

/// Whether there are labels beside a token file, which must have an index, and the prefix of their
/// pair.
std::optional<std::filesystem::path> labels_of(const TokenCorpus::TokenFile& tokens);
/// The names of these; nothing where there are no labels.
std::optional<LabelNames> label_names_of(const TokenCorpus::TokenFile& tokens);

/// The labels of documents beside a token file, one each; DataError where they do not fit its
/// documents or the names.
std::vector<std::int32_t> read_document_labels(const TokenCorpus::TokenFile& tokens,
                                               const LabelNames& names);

/// The labels of words beside token files, for each token.
class WordLabels {
 public:
  /// DataError where a pair does not have the documents and lengths of its tokens.
  WordLabels(std::span<const TokenCorpus::TokenFile> tokens, const LabelNames& names);

  /// The labels of tokens [first, first + out.size()) of all files, one after another; -1 where a
  /// token has none. DataError for one that has no name. Safe to call from many threads at once.
  void read(std::int64_t first, std::span<std::int32_t> out) const;

 private:
  std::vector<std::string> pairs_;
  TokenCorpus elements_;
  std::size_t names_;
};

/// Removes all three files, durably; no error if they are not there.
void forget_labels(const std::filesystem::path& prefix);

/// The labels of some documents or tokens, as they are found: names in any order, numbered as they
/// come.
class LabelsFound {
 public:
  /// The next one's. Whether all are of one kind is a matter for label_names().
  void add(const LabelValue& label, const InputPlace& place);
  /// The next one has none.
  void add_none() { numbers_.push_back(-1); }

  /// Of each, the number of its name, or -1.
  const std::vector<std::int32_t>& numbers() const { return numbers_; }

  struct Name {
    std::int32_t number = 0;
    InputPlace place;  // of the first
  };
  const std::map<LabelValue, Name>& names() const { return names_; }

  /// Names and their places, without whose they are, as text; and again from it.
  std::string pack() const;
  static LabelsFound unpack(const std::string& packed);

 private:
  std::vector<std::int32_t> numbers_;
  std::map<LabelValue, Name> names_;
};

/// The names that all parts found, or, where there are some that are `known`, those. DataError for
/// labels of several kinds, naming the place of one of each, the first by part; and for one that is
/// not known. `key` says where labels come from.
std::vector<std::string> label_names(std::string_view key, std::span<const LabelsFound> parts,
                                     const std::optional<LabelNames>& known = std::nullopt);

}  // namespace tessera::io

namespace tessera {

template <>
struct EnumWords<io::LabelsOf> {
  using enum io::LabelsOf;
  static constexpr std::array table = {std::pair{documents, "documents"},
                                       std::pair{words, "words"}};
};

}  // namespace tessera
