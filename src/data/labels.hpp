// The labels of documents, for models that say which class a document is of.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "deck/load.hpp"
#include "io/hugging_face.hpp"
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

/// The names of a model directory's classes, where it has some and says them.
std::optional<io::LabelNames> labels_of_directory(const io::HfModel& model);

/// DataError where data has other labels than the model that the run begins with, that of
/// model.init_from or of checkpoints that `run_directory` holds: classes would change their
/// meaning. Where that model has classes but no names for them, says which it takes them for;
/// else empty.
std::string check_labels(const deck::LoadedDeck& loaded, const io::LabelNames& labels,
                         const std::filesystem::path& run_directory);

/// The labels.json of a checkpoint directory, or of the run that it lies in.
std::optional<std::filesystem::path> labels_of_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace tessera::data
