// The files that a deck names, as far as they can be reached from here.
#include <algorithm>

#include "core/bytes.hpp"
#include "core/regular_file.hpp"
#include "core/terminal.hpp"
#include "data/corpora.hpp"
#include "data/labels.hpp"
#include "data/pairs.hpp"
#include "data/prompts.hpp"
#include "data/tokenizers.hpp"
#include "io/file.hpp"
#include "train/state/starting_state.hpp"
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

/// A key's files, and what `check` says of them.
struct Seen {
  std::unique_ptr<io::TokenCorpus> corpus;  // nullptr if they are elsewhere, or none are named
  std::string text;
};

Seen corpus_of(const deck::LoadedDeck& loaded, const data::CorpusKey& key) {
  if (key.entries.empty()) return {};
  const auto beyond = std::ranges::find_if_not(key.entries, reachable);
  if (beyond != key.entries.end()) {
    const fs::path directory = directory_of(*beyond);
    return {nullptr,
            fmt::format("note: {}: {} is not here, as there is no directory {}{}: not checked{}\n",
                        key.name, printable(*beyond), printable(directory.string()),
                        printable(full_path_text(directory)),
                        printable(loaded.path_hint(key.name, *beyond)))};
  }
  if (deck::draws_answers(loaded.deck.task.kind)) {
    const data::Prompts prompts = data::open_prompts(loaded);
    std::int64_t longest = 0;
    for (const auto& prompt : prompts.all) longest = std::max(longest, std::ssize(prompt.tokens));
    return {nullptr,
            fmt::format("{}: {} in {}, the longest of {}\n", key.name,
                        count_text(std::ssize(prompts.all), "prompt"),
                        count_text(std::ssize(key.entries), "file"), count_text(longest, "token"))};
  }
  auto corpus = data::open_corpus(loaded, key);
  const std::string text = fmt::format("{}: {} tokens in {}\n", key.name, corpus->tokens(),
                                       count_text(std::ssize(corpus->files()), "file"));
  return {std::move(corpus), text};
}

/// What `check` says of the file of task.reference, which a first run of a deck has yet to make.
std::string reference_text(const deck::LoadedDeck& loaded, const Seen& training,
                           const Seen& validation) {
  const deck::Deck& deck = loaded.deck;
  if (!deck::has_reference(deck.task.kind)) return "";
  const std::string file = printable(*deck.task.reference);
  if (!io::path_exists(*deck.task.reference)) {
    return fmt::format(
        "note: task.reference: {} is not here: tessera evaluate DECK --reference makes it\n", file);
  }
  for (const Seen* seen : {&training, &validation})
    if (seen->corpus) data::open_references(deck, *seen->corpus);
  data::check_reference_model(loaded);
  return fmt::format("task.reference: {} is of this model and data\n", file);
}

}  // namespace

std::string data_text(const deck::LoadedDeck& loaded) {
  const deck::Deck& deck = loaded.deck;
  const Seen training = corpus_of(loaded, data::training_key(deck)),
             validation = corpus_of(loaded, data::validation_key(deck));
  std::string text = training.text + validation.text;
  if (const auto labels =
          data::common_labels(loaded, training.corpus.get(), validation.corpus.get())) {
    text +=
        fmt::format("labels: {}\n", printable(fmt::format("{}", fmt::join(labels->names, ", "))));
    const std::string note = data::check_labels(loaded, *labels, deck::run_directory(deck));
    if (!note.empty()) text += fmt::format("note: {}\n", printable(note));
  }
  text += reference_text(loaded, training, validation);
  const auto tokenizers = data::tokenizers_of_run(deck);
  data::common_tokenizer(loaded, tokenizers);
  for (const auto& known : tokenizers)
    text += fmt::format("tokenizer of {}: {}\n", known.key, printable(known.path.string()));
  if (deck.model.init_from) {  // its directory was read before
    for (const auto& note : train::init_from_notes(deck, train::open_init_from(deck)))
      text += note + "\n";
  }
  return text;
}

}  // namespace tessera::verbs
