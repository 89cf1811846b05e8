// The labels of documents and their words, for models that say which class these are of.
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
  /// DataError where a file has no labels of what the task learns classes of, where some have
  /// others than the rest, and where they are more than the classes of the model.
  LabelledDocuments(const io::TokenCorpus& corpus, const deck::TaskSection& task);

  /// The document that has a token of the corpus.
  struct Document {
    std::int64_t end = 0;      // the token of the corpus behind its last
    std::int64_t closing = 0;  // so many of its last tokens are no text
    std::int32_t label = -1;   // where labels are of documents
  };
  Document at(std::int64_t token) const;
  /// The labels of words, by token: see io::WordLabels; null where documents have labels.
  const io::WordLabels* words() const { return words_.get(); }
  const io::LabelNames& names() const { return names_; }

 private:
  void add(const io::TokenCorpus& corpus, const io::TokenCorpus::TokenFile& file, Range tokens,
           const io::LabelNames& names);

  io::LabelNames names_;
  std::vector<Document> documents_;  // of the corpus, ascending
  std::unique_ptr<io::WordLabels> words_;
};

/// The classes of a task that has some. DataError where training and validation data, which may be
/// absent, have different ones.
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
