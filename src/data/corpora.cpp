#include "data/corpora.hpp"

#include "core/bytes.hpp"
#include "core/error.hpp"
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

}  // namespace

CorpusKey training_key(const deck::Deck& deck) { return {"data.train", deck.data.train, 1}; }

CorpusKey validation_key(const deck::Deck& deck) {
  return {"data.validation", deck.data.validation, optim::Timeline(deck.batch, 0).global(1)};
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
  const std::int64_t length = loaded.deck.batch.sequence;
  if (const std::int64_t have = corpus->sequences(length); have < key.least) {
    throw DataError(fmt::format("{}: {} holds {}: {} of {} and a target, at least {} needed",
                                loaded.where(key.name), key.name,
                                count_text(corpus->tokens(), "token"), count_text(have, "sequence"),
                                length, count_text(key.least, "is", "are")));
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
