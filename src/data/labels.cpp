#include "data/labels.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/bytes.hpp"
#include "core/error.hpp"
#include "data/samples.hpp"
#include "io/checkpoint_directory.hpp"

namespace tessera::data {
namespace {

std::string names_text(const io::LabelNames& labels) {
  return fmt::format("{} ({})", count_text(std::ssize(labels.names), "label"),
                     fmt::join(labels.names, ", "));
}

}  // namespace

LabelledDocuments::LabelledDocuments(const io::TokenCorpus& corpus, const deck::TaskSection& task) {
  const io::LabelsOf of =
      task.kind == deck::TaskKind::tokens ? io::LabelsOf::words : io::LabelsOf::documents;
  const io::TokenCorpus::TokenFile* first = nullptr;
  std::int64_t begin = 0;
  for (const io::TokenCorpus::TokenFile& file : corpus.files()) {
    const std::string name = file.file.path().string();
    auto found = io::label_names_of(file);
    if (!found || found->of != of) {
      throw DataError(fmt::format(
          "{}: its {} have no labels, which task.kind = \"{}\" learns{}: make it anew with tessera "
          "tokenize {}--label",
          name, enum_word(of), enum_word(task.kind),
          found ? fmt::format("; those beside it are of {}", enum_word(found->of)) : "",
          of == io::LabelsOf::words ? "--words and " : ""));
    }
    if (std::ssize(found->names) > *task.labels) {
      throw DataError(fmt::format("{}: {}, more than task.labels = {}", name, names_text(*found),
                                  *task.labels));
    }
    if (first != nullptr && found->names != names_.names) {
      throw DataError(fmt::format(
          "{} has {}, but {} has {}: make one with the other's, by tessera tokenize --labels", name,
          names_text(*found), first->file.path().string(), names_text(names_)));
    }
    add(corpus, file, {begin, begin + file.tokens}, *found);
    first = &file;
    names_ = *std::move(found);
    begin += file.tokens;
  }
  if (of == io::LabelsOf::words) words_ = std::make_unique<io::WordLabels>(corpus.files(), names_);
}

/// The documents of a file, of which these are the tokens.
void LabelledDocuments::add(const io::TokenCorpus& corpus, const io::TokenCorpus::TokenFile& file,
                            Range tokens, const io::LabelNames& names) {
  const std::size_t before = documents_.size();
  for_each_document_end(corpus, tokens, [&](std::int64_t end) {
    documents_.push_back({.end = end, .closing = names.closing});
  });
  if (names.of == io::LabelsOf::words) return;
  const std::span own = std::span(documents_).subspan(before);
  const std::vector<std::int32_t> labels = io::read_document_labels(file, names);
  if (own.size() != labels.size()) {
    throw DataError(fmt::format("{}: {} for {} that have tokens: an empty document has no class",
                                file.file.path().string(), count_text(std::ssize(labels), "label"),
                                count_text(std::ssize(own), "document")));
  }
  for (std::size_t i = 0; i < own.size(); ++i) own[i].label = labels[i];
}

LabelledDocuments::Document LabelledDocuments::at(std::int64_t token) const {
  const auto found = std::ranges::upper_bound(documents_, token, {}, &Document::end);
  TESSERA_CHECK(found != documents_.end(), "token {} of labelled documents", token);
  return *found;
}

std::optional<io::LabelNames> common_labels(const deck::LoadedDeck& loaded,
                                            const io::TokenCorpus* training,
                                            const io::TokenCorpus* validation) {
  const deck::TaskSection& task = loaded.deck.task;
  if (!task.labels) return std::nullopt;
  std::optional<io::LabelNames> all;
  for (const io::TokenCorpus* corpus : {training, validation}) {
    if (corpus == nullptr) continue;
    const LabelledDocuments documents(*corpus, task);
    if (all && all->names != documents.names().names) {
      throw DataError(fmt::format(
          "data.train has {}, but data.validation has {}: make the latter with the former's, by "
          "tessera tokenize --labels PREFIX.labels.json",
          names_text(*all), names_text(documents.names())));
    }
    all = documents.names();
  }
  return all;
}

std::optional<io::LabelNames> labels_of_directory(const io::HfModel& model) {
  if (model.classes().empty()) return std::nullopt;
  return io::LabelNames{.key = "label", .names = {model.classes().begin(), model.classes().end()}};
}

std::string check_labels(const deck::LoadedDeck& loaded, const io::LabelNames& labels,
                         const std::filesystem::path& run_directory) {
  std::string unnamed;  // the model whose classes are so
  const auto check = [&](const std::vector<std::string>& names, const std::string& place,
                         std::string_view instead = "") {
    if (names.empty()) unnamed = place;
    if (names.empty() || names == labels.names) return;
    throw DataError(fmt::format(
        "data.train has {}, but the model's classes are {}, as {} says: make the data with tessera "
        "tokenize --labels FILE, a FILE of {}{}",
        names_text(labels), fmt::join(names, ", "), place,
        nlohmann::json{{"key", labels.key}, {"names", names}}.dump(), instead));
  };
  const deck::ModelSection& model = loaded.deck.model;
  if (const auto& directory = model.init_from; directory && model.init_head != HeadWeights::fresh) {
    const auto config = std::filesystem::path(*directory) / "config.json";
    check(io::read_hf_config(config).classes, config.string(),
          ", or begin with a fresh head, by model.init_head = \"fresh\"");
  }
  if (!io::committed_checkpoints(run_directory / "checkpoints").empty()) {
    const auto file = run_directory / "labels.json";
    const bool named = io::path_exists(file);
    if (named) unnamed.clear();  // by the run itself
    check(named ? io::read_label_names(file).names : std::vector<std::string>(),
          named ? file.string() : run_directory.string());
  }
  if (unnamed.empty()) return "";
  std::vector<std::string> taken;
  for (std::size_t i = 0; i < labels.names.size(); ++i)
    taken.push_back(fmt::format("{} is {}", i, labels.names[i]));
  return fmt::format("{} has no names for its classes, which are taken for those of data.train: {}",
                     unnamed, fmt::join(taken, ", "));
}

std::optional<std::filesystem::path> labels_of_checkpoint(const std::filesystem::path& checkpoint) {
  // run/checkpoints/step_00000100
  for (const auto& directory :
       {checkpoint, std::filesystem::absolute(checkpoint).parent_path().parent_path()}) {
    if (io::path_exists(directory / "labels.json")) return directory / "labels.json";
  }
  return std::nullopt;
}

}  // namespace tessera::data
