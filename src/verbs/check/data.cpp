// The files that a deck names, as far as they can be reached from here.
#include <algorithm>

#include "core/bytes.hpp"
#include "core/regular_file.hpp"
#include "core/terminal.hpp"
#include "data/corpora.hpp"
#include "data/tokenizers.hpp"
#include "io/file.hpp"
#include "io/hugging_face.hpp"
#include "verbs/check/check.hpp"

namespace tessera::verbs {
namespace {

namespace fs = std::filesystem;

/// The part of an entry of data.train that must be a directory here for its files to be here: up to
/// the last one before a glob's first wildcard.
fs::path directory_of(const std::string& entry) {
  const fs::path fixed = entry.substr(0, entry.find_first_of("*?["));
  return fixed.has_parent_path() ? fixed.parent_path() : fs::path(".");
}

/// A cluster's deck may be checked on another machine, where whole directories are missing: that is
/// noted. A file that is missing in a directory that is there is an error.
bool reachable(const std::string& entry) {
  std::error_code hidden;  // a directory that this user may not look into is not here either
  return fs::exists(directory_of(entry), hidden);
}

std::string corpus_text(const deck::LoadedDeck& loaded, const data::CorpusKey& key) {
  if (key.entries.empty()) return "";
  const auto beyond = std::ranges::find_if_not(key.entries, reachable);
  if (beyond != key.entries.end()) {
    const fs::path directory = directory_of(*beyond);
    return fmt::format("note: {}: {} is not here, as there is no directory {}{}: not checked{}\n",
                       key.name, printable(*beyond), printable(directory.string()),
                       printable(full_path_text(directory)),
                       printable(loaded.path_hint(key.name, *beyond)));
  }
  const auto corpus = data::open_corpus(loaded, key);
  return fmt::format("{}: {} tokens in {}\n", key.name, corpus->tokens(),
                     count_text(std::ssize(corpus->files()), "file"));
}

}  // namespace

std::string data_text(const deck::LoadedDeck& loaded) {
  const deck::Deck& deck = loaded.deck;
  std::string text = corpus_text(loaded, data::training_key(deck)) +
                     corpus_text(loaded, data::validation_key(deck));
  const auto tokenizers = data::tokenizers_of_run(deck);
  data::common_tokenizer(loaded, tokenizers);
  for (const auto& known : tokenizers)
    text += fmt::format("tokenizer of {}: {}\n", known.key, printable(known.path.string()));
  if (deck.model.init_from)
    io::HfModel::open(*deck.model.init_from);  // its directory was read before
  return text;
}

}  // namespace tessera::verbs
