// The labels of documents, for models that say which class a document is of.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "deck/load.hpp"
#include "io/token_files.hpp"
#include "io/token_labels.hpp"

namespace tessera::data {

class LabelledDocuments {
 public:
  /// DataError where a file has no labels, where some have others than the rest, and where they
  /// are more than the `classes` of the model.
  LabelledDocuments(const io::TokenCorpus& corpus, std::int64_t classes);

  /// The label of the document that has a token of the corpus.
  std::int32_t at(std::int64_t token) const;
  const io::LabelNames& names() const { return names_; }

 private:
  io::LabelNames names_;
  std::vector<std::int64_t> ends_;    // tokens of the corpus behind which documents end, ascending
  std::vector<std::int32_t> labels_;  // of each
};

/// The classes of task.kind = "classify"; nothing for other tasks. DataError where training and
/// validation data, which may be absent, have different ones.
std::optional<io::LabelNames> common_labels(const deck::LoadedDeck& loaded,
                                            const io::TokenCorpus* training,
                                            const io::TokenCorpus* validation);

/// The labels.json of a checkpoint directory, or of the run that it lies in.
std::optional<std::filesystem::path> labels_of_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace tessera::data
