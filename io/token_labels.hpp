// The classes of documents: beside PREFIX.bin and .idx an indexed dataset PREFIX.labels.bin and
// .labels.idx, of i32 elements, of which document d holds one, the label of the tokens' document d;
// and PREFIX.labels.json, {"key": "sentiment", "names": ["neg", "pos"]}: label i is names[i]. Names
// are sorted: integers by their value, others by their bytes.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/text_reader.hpp"
#include "io/token_files.hpp"

namespace tessera::io {

/// Names are few: there is an output of the model for each.
constexpr std::int64_t kMostLabels = 1 << 20;

struct LabelNames {
  std::string key;  // where the labels come from
  std::vector<std::string> names;

  /// The label of that name.
  std::optional<std::int32_t> find(std::string_view name) const;
};

/// PREFIX.labels, the prefix of the pair, and PREFIX.labels.json.
std::filesystem::path labels_prefix(const std::filesystem::path& prefix);
std::filesystem::path label_names_file(const std::filesystem::path& prefix);

/// DataError, naming file and place, for what is no labels.json.
LabelNames read_label_names(const std::filesystem::path& file);
/// Whole or not at all.
void write_label_names(const std::filesystem::path& file, const LabelNames& labels);

/// The label of each document.
struct DocumentLabels {
  LabelNames names;
  std::vector<std::int32_t> labels;
};
/// The labels beside a token file, where it has an index and there are such; DataError where they
/// do not fit its documents or their names.
std::optional<DocumentLabels> read_labels(const TokenCorpus::TokenFile& tokens);
/// Whether there are some, and the prefix of their pair.
std::optional<std::filesystem::path> labels_of(const TokenCorpus::TokenFile& tokens);

/// Removes all three files, durably; no error if they are not there.
void forget_labels(const std::filesystem::path& prefix);

/// What a label is in the input. Those of all documents must be of one kind.
enum class LabelKind { text, integer, boolean };

struct LabelValue {
  LabelKind kind = LabelKind::text;
  std::string name;
  auto operator<=>(const LabelValue&) const = default;
};

/// The labels of some documents, as they are found: names in any order, numbered as they come.
class LabelsFound {
 public:
  /// The next document's. Whether all are of one kind is a matter for label_names().
  void add(const LabelValue& label, const InputPlace& place);

  /// Of each document, the number of its name.
  const std::vector<std::int32_t>& documents() const { return documents_; }

  struct Name {
    std::int32_t number = 0;
    InputPlace place;  // of the first
  };
  const std::map<LabelValue, Name>& names() const { return names_; }

  /// Names and their places, without the documents, as text; and again from it.
  std::string pack() const;
  static LabelsFound unpack(const std::string& packed);

 private:
  std::vector<std::int32_t> documents_;
  std::map<LabelValue, Name> names_;
};

/// The names that all parts found, or, where there are some that are `known`, those. DataError for
/// labels of several kinds, naming the place of one of each, the first by part; and for one that is
/// not known.
LabelNames label_names(std::string key, std::span<const LabelsFound> parts,
                       const std::optional<LabelNames>& known = std::nullopt);

}  // namespace tessera::io
