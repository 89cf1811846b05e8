#include "data/corpora.hpp"

#include "core/bytes.hpp"
#include "core/error.hpp"
#include "data/pairs.hpp"
#include "data/samples.hpp"
#include "optim/timeline.hpp"

namespace tessera::data {
namespace {

std::unique_ptr<io::TokenCorpus> open_on_all(const deck::LoadedDeck& loaded,
                                             const comm::Control& control, const CorpusKey& key) {
  std::unique_ptr<io::TokenCorpus> corpus;
  control.together([&] { corpus = open_corpus(loaded, key); });
  control.must_agree(static_cast<std::uint64_t>(corpus->tokens()),
                     fmt::format("{}: ranks see different token files", key.name));
  return corpus;
}

/// Whether the files say what the deck wants to know of documents and targets.
void check_documents(const deck::LoadedDeck& loaded, const CorpusKey& key,
                     const io::TokenCorpus& corpus) {
  const deck::Deck& deck = loaded.deck;
  const bool separate = deck.data.documents == deck::Documents::separate && !deck.data.separator;
  if (const io::File* file = corpus.file_without_documents(); separate && file != nullptr) {
    throw DataError(fmt::format(
        "{}: {}: {} does not say where its documents end, which data.documents = \"separate\" "
        "needs: "
        "give the token that ends each as data.separator, or data.documents = \"joined\"",
        loaded.where(key.name), key.name, file->path().string()));
  }
  if (key.trains && deck.optimizer.compress_after && corpus.has_targets()) {
    throw DeckError(fmt::format(
        "{}: optimizer.name = \"{}\" does not go with {}, of whose targets some do not count: its "
        "gradients join momentum before their number is known (use adamw or lamb, or move the "
        "files "
        "that end in .targets.bin and .targets.idx away)",
        loaded.where("optimizer.name"), enum_word(deck.optimizer.name), key.name));
  }
}

/// `what`: the entry, or all of them.
void check_length(const deck::LoadedDeck& loaded, const CorpusKey& key, const std::string& what,
                  const io::TokenCorpus& corpus, Range tokens) {
  const std::int64_t have =
      sequences_of(corpus, loaded.deck, tokens, what, io::Shuffle::no).count();
  if (have >= key.least) return;
  throw DataError(fmt::format("{}: {} holds {}: {} of {} and a target, at least {} needed",
                              loaded.where(key.name), what, count_text(tokens.count(), "token"),
                              count_text(have, "sequence"), loaded.deck.batch.sequence,
                              count_text(key.least, "is", "are")));
}

}  // namespace

CorpusKey training_key(const deck::Deck& deck) {
  return {"data.train", deck::paths_of(deck.data.train), 1, is_mixture(deck.data), true};
}

CorpusKey validation_key(const deck::Deck& deck) {
  const bool any_number = deck::one_document_each(deck.task.kind);  // the last batch is padded
  return {"data.validation", deck.data.validation,
          any_number ? 1 : optim::Timeline(deck.batch, 0).global(1), true};
}

std::unique_ptr<io::TokenCorpus> open_corpus(const deck::LoadedDeck& loaded, const CorpusKey& key) {
  std::unique_ptr<io::TokenCorpus> corpus;
  try {
    corpus = std::make_unique<io::TokenCorpus>(key.entries, loaded.deck.model.vocab);
  } catch (Error& e) {
    std::string hint;  // of the first entry that is missing, which is what was refused
    for (std::size_t i = 0; i < key.entries.size() && hint.empty(); ++i)
      hint = loaded.path_hint(key.name, key.entries[i]);
    e.add_context(fmt::format("{}: {}{}", loaded.where(key.name), key.name, hint));
    throw;
  }
  check_documents(loaded, key, *corpus);
  if (deck::has_pairs(loaded.deck.task.kind)) check_pairs(loaded.deck, *corpus, key.name);
  if (!key.apart) check_length(loaded, key, key.name, *corpus, {0, corpus->tokens()});
  for (std::size_t i = 0; key.apart && i < key.entries.size(); ++i) {
    check_length(loaded, key, fmt::format("{} in {}", key.entries[i], key.name), *corpus,
                 corpus->entries()[i]);
  }
  return corpus;
}

std::unique_ptr<io::TokenCorpus> open_training(const deck::LoadedDeck& loaded,
                                               const comm::Control& control) {
  return open_on_all(loaded, control, training_key(loaded.deck));
}

std::unique_ptr<io::TokenCorpus> open_validation(const deck::LoadedDeck& loaded,
                                                 const comm::Control& control) {
  if (loaded.deck.data.validation.empty()) return nullptr;
  return open_on_all(loaded, control, validation_key(loaded.deck));
}

}  // namespace tessera::data
