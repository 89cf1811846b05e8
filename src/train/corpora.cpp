#include "train/corpora.hpp"

#include "optim/timeline.hpp"

namespace tessera::train {
namespace {

std::unique_ptr<TokenCorpus> open(const deck::LoadedDeck& loaded, const comm::Control& control,
                                  const char* key, const std::vector<std::string>& entries,
                                  std::int64_t least) {
  std::unique_ptr<TokenCorpus> corpus;
  control.together([&] {
    try {
      corpus = std::make_unique<TokenCorpus>(entries, loaded.deck.model.vocab);
    } catch (Error& e) {
      e.add_context(fmt::format("{}: {}", loaded.where(key), key));
      throw;
    }
    const std::int64_t length = loaded.deck.batch.sequence;
    if (const std::int64_t have = corpus->sequences(length); have < least) {
      throw DataError(fmt::format(
          "{}: {} holds {} tokens: {} sequences of {} and a target, at least {} are needed",
          loaded.where(key), key, corpus->tokens(), have, length, least));
    }
  });
  control.must_agree(static_cast<std::uint64_t>(corpus->tokens()),
                     fmt::format("{}: ranks see different token files", key));
  return corpus;
}

}  // namespace

std::unique_ptr<TokenCorpus> open_training(const deck::LoadedDeck& loaded,
                                           const comm::Control& control) {
  return open(loaded, control, "data.train", loaded.deck.data.train, 1);
}

std::unique_ptr<TokenCorpus> open_validation(const deck::LoadedDeck& loaded,
                                             const comm::Control& control) {
  if (loaded.deck.data.validation.empty()) return nullptr;
  return open(loaded, control, "data.validation", loaded.deck.data.validation,
              optim::Timeline(loaded.deck.batch, 0).global(1));
}

}  // namespace tessera::train
