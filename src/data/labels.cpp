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

LabelledDocuments::LabelledDocuments(const io::TokenCorpus& corpus, std::int64_t classes) {
  const io::TokenCorpus::TokenFile* first = nullptr;
  std::int64_t begin = 0;
  for (const io::TokenCorpus::TokenFile& file : corpus.files()) {
    const std::string name = file.file.path().string();
    auto found = io::read_labels(file);
    if (!found) {
      throw DataError(
          fmt::format("{}: its documents have no labels, which task.kind = \"classify\" learns: "
                      "make it anew with tessera tokenize --label",
                      name));
    }
    if (std::ssize(found->names.names) > classes) {
      throw DataError(fmt::format("{}: {}, more than task.labels = {}", name,
                                  names_text(found->names), classes));
    }
    if (first != nullptr && found->names.names != names_.names) {
      throw DataError(fmt::format(
          "{} has {}, but {} has {}: make one with the other's, by tessera tokenize --labels", name,
          names_text(found->names), first->file.path().string(), names_text(names_)));
    }
    first = &file;
    names_ = std::move(found->names);
    const std::int64_t end = begin + file.tokens, before = std::ssize(ends_);
    for_each_document_end(corpus, {begin, end}, [&](std::int64_t at) { ends_.push_back(at); });
    if (std::ssize(ends_) - before != std::ssize(found->labels)) {
      throw DataError(fmt::format("{}: {} for {} that have tokens: an empty document has no class",
                                  name, count_text(std::ssize(found->labels), "label"),
                                  count_text(std::ssize(ends_) - before, "document")));
    }
    std::ranges::copy(found->labels, std::back_inserter(labels_));
    begin = end;
  }
}

std::int32_t LabelledDocuments::at(std::int64_t token) const {
  return labels_.at(
      static_cast<std::size_t>(std::ranges::upper_bound(ends_, token) - ends_.begin()));
}

std::optional<io::LabelNames> common_labels(const deck::LoadedDeck& loaded,
                                            const io::TokenCorpus* training,
                                            const io::TokenCorpus* validation) {
  const auto& classes = loaded.deck.task.labels;
  if (!classes) return std::nullopt;
  std::optional<io::LabelNames> all;
  for (const io::TokenCorpus* corpus : {training, validation}) {
    if (corpus == nullptr) continue;
    const LabelledDocuments documents(*corpus, *classes);
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
  const auto check = [&](const std::vector<std::string>& names, const std::string& place) {
    if (names.empty()) unnamed = place;
    if (names.empty() || names == labels.names) return;
    throw DataError(fmt::format(
        "data.train has {}, but the model's classes are {}, as {} says: make the data with tessera "
        "tokenize --labels FILE, a FILE of {}",
        names_text(labels), fmt::join(names, ", "), place,
        nlohmann::json{{"key", labels.key}, {"names", names}}.dump()));
  };
  if (const auto& directory = loaded.deck.model.init_from) {
    const auto config = std::filesystem::path(*directory) / "config.json";
    check(io::read_hf_config(config).classes, config.string());
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
