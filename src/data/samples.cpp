#include "data/samples.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "core/at.hpp"
#include "core/error.hpp"
#include "core/hash.hpp"

namespace tessera::data {

Sequences::Sequences(Range tokens, std::int64_t length) : tokens_(tokens), length_(length) {}

void for_each_document_end(const io::TokenCorpus& corpus, Range tokens,
                           const std::function<void(std::int64_t)>& end_at) {
  constexpr std::int64_t kAtOnce = 1 << 20;  // tokens
  std::int64_t last = tokens.begin;
  for (std::int64_t t = tokens.begin; t < tokens.end; t += kAtOnce) {
    for (const std::int64_t end : corpus.document_ends({t, std::min(tokens.end, t + kAtOnce)}))
      end_at(last = end);
  }
  if (last < tokens.end) end_at(tokens.end);
}

static DataError too_long(const std::string& name, std::int64_t document, Range tokens,
                          LongestDocument longest, const char* remedy) {
  return DataError(fmt::format(
      "{}: document {}, which begins with token {}, has {} tokens, more than the {} that {} "
      "allows: {}",
      name, document, tokens.begin, tokens.count(), longest.tokens, longest.key, remedy));
}

Sequences Sequences::of_documents(const io::TokenCorpus& corpus, Range tokens, std::int64_t budget,
                                  LongestDocument longest, const std::string& name) {
  Sequences all(tokens, budget);
  std::int64_t begin = tokens.begin, end = begin, documents = 0;  // of the sequence being filled
  for_each_document_end(corpus, tokens, [&](std::int64_t document_end) {
    ++documents;
    if (document_end - end > longest.tokens) {
      throw too_long(name, documents, {end - tokens.begin, document_end - tokens.begin}, longest,
                     "cut it, or give a larger one");
    }
    if (document_end - begin > budget) {
      all.ends_.push_back(end);
      begin = end;
    }
    end = document_end;
  });
  if (end > begin) all.ends_.push_back(end);
  return all;
}

Sequences Sequences::of_each_document(const io::TokenCorpus& corpus, Range tokens,
                                      LongestDocument longest, deck::Overlong overlong,
                                      const std::string& name, const char* remedy) {
  Sequences all(tokens, longest.tokens);
  std::int64_t begin = tokens.begin;
  for_each_document_end(corpus, tokens, [&](std::int64_t end) {
    if (end - begin > longest.tokens && overlong == deck::Overlong::refuse) {
      throw too_long(name, std::ssize(all.ends_) + 1, {begin - tokens.begin, end - tokens.begin},
                     longest, remedy);
    }
    all.ends_.push_back(end);
    begin = end;
  });
  return all;
}

Sequences Sequences::packed(const Sequences& documents, const io::Sampler& order,
                            std::int64_t budget, std::int64_t most) {
  struct Pack {
    Stretches documents;
    std::int64_t room = 0;
  };
  constexpr std::ptrdiff_t kOpen = 64;
  Sequences all(documents.tokens_, budget);
  std::vector<Pack> open;
  const auto close = [&](std::vector<Pack>::iterator pack) {
    std::ranges::copy(pack->documents, std::back_inserter(all.documents_));
    all.packs_.push_back(std::ssize(all.documents_));
    open.erase(pack);
  };
  for (std::int64_t i = 0; i < documents.count(); ++i) {
    const Range document = documents.stretch(order.sequence_of(i));
    auto best = open.end();
    for (auto pack = open.begin(); pack != open.end(); ++pack) {
      const bool fits = pack->room >= document.count();
      if (fits && (best == open.end() || pack->room < best->room)) best = pack;
    }
    if (best == open.end()) {
      if (std::ssize(open) == kOpen) close(std::ranges::min_element(open, {}, &Pack::room));
      best = open.insert(open.end(), Pack{.documents = {}, .room = budget});
    }
    best->documents.push_back(document);
    best->room -= document.count();
    if (best->room == 0 || std::ssize(best->documents) == most) close(best);
  }
  while (!open.empty()) close(open.begin());
  return all;
}

std::int64_t Sequences::count() const {
  if (!packs_.empty()) return std::ssize(packs_);
  return ends_.empty() ? io::sequences_in(tokens_.count(), length_) : std::ssize(ends_);
}

std::int64_t Sequences::stretches(std::int64_t sequences) const {
  return packs_.empty() || sequences == 0 ? sequences : at(packs_, sequences - 1);
}

Stretches Sequences::operator[](std::int64_t sequence) const {
  if (packs_.empty()) return {stretch(sequence)};
  return {documents_.begin() + stretches(sequence), documents_.begin() + stretches(sequence + 1)};
}

/// Of a sequence that is one.
Range Sequences::stretch(std::int64_t sequence) const {
  if (ends_.empty()) {
    const std::int64_t begin = tokens_.begin + sequence * length_;
    return {begin, begin + length_};
  }
  const auto index = static_cast<std::size_t>(sequence);
  const std::int64_t begin = index == 0 ? tokens_.begin : ends_.at(index - 1);
  return {begin, std::min(ends_.at(index), begin + length_)};
}

Sequences sequences_of(const io::TokenCorpus& corpus, const deck::Deck& deck, Range tokens,
                       const std::string& name, io::Shuffle shuffle) {
  const auto& budget = deck.batch.token_budget;
  LongestDocument longest{deck.batch.sequence};
  if (budget) longest.key = "batch.token_budget";
  if (longest.tokens > deck.model.context) longest = {deck.model.context, "model.context"};
  if (deck::has_classes(deck.task.kind)) {
    auto documents = Sequences::of_each_document(
        corpus, tokens, longest, *deck.task.overlong, name,
        "give a larger one, or task.overlong = \"cut\" to leave out its end");
    if (!budget || documents.count() == 0) return documents;
    const io::Sampler order(documents.count(), static_cast<std::uint64_t>(deck.run.seed), shuffle);
    return Sequences::packed(documents, order, *budget, deck.batch.documents.value_or(*budget));
  }
  if (deck::has_pairs(deck.task.kind)) {
    return Sequences::of_each_document(corpus, tokens, longest, deck::Overlong::refuse, name,
                                       "give a larger one, or shorten what it was made of");
  }
  if (!budget) return Sequences(tokens, deck.batch.sequence);
  return Sequences::of_documents(corpus, tokens, *budget, longest, name);
}

namespace {

constexpr const char* kTrain = "data.train";

io::Shuffle shuffled(const deck::Deck& deck) {
  return deck.data.shuffle ? io::Shuffle::yes : io::Shuffle::no;
}

/// The corpora of a mixture, or the one that there is.
std::vector<Sequences> training_sequences(const io::TokenCorpus& corpus, const deck::Deck& deck) {
  if (!is_mixture(deck.data))
    return {sequences_of(corpus, deck, {0, corpus.tokens()}, kTrain, shuffled(deck))};
  std::vector<Sequences> all;
  for (std::size_t i = 0; i < deck.data.train.size(); ++i) {
    all.push_back(sequences_of(corpus, deck, corpus.entries()[i],
                               fmt::format("{} in {}", deck.data.train[i].path, kTrain),
                               shuffled(deck)));
  }
  return all;
}

/// So many samples that follow one another stay together, whatever the order of the others.
std::int64_t samples_together(const deck::Deck& deck) {
  return deck::has_pairs(deck.task.kind) ? 2 : 1;
}

/// Sequences that a corpus has in one epoch.
double in_epoch(const Sequences& sequences, const deck::DataEntry& entry) {
  return entry.epochs.value_or(1) * static_cast<double>(sequences.count());
}

SampleTokens mixed_samples(std::vector<Sequences> parts, const deck::Deck& deck) {
  std::vector<double> shares;
  std::vector<io::Sampler> orders;
  const std::int64_t together = samples_together(deck);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const deck::DataEntry& entry = deck.data.train[i];
    shares.push_back(entry.weight.value_or(in_epoch(parts[i], entry)));
    orders.emplace_back(parts[i].count() / together, Hasher().add(deck.run.seed).add(i).value(),
                        shuffled(deck));
  }
  return [mixture = Mixture(shares), parts = std::move(parts), orders = std::move(orders),
          together](std::int64_t sample) {
    const auto [which, of_corpus] = mixture.place_of(sample / together);
    return parts[which][together * orders[which].sequence_of(of_corpus) + sample % together];
  };
}

}  // namespace

std::int64_t epoch_samples(const io::TokenCorpus& corpus, const deck::Deck& deck) {
  const auto parts = training_sequences(corpus, deck);
  if (!is_mixture(deck.data)) return parts[0].count();
  double all = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) all += in_epoch(parts[i], deck.data.train[i]);
  return std::max<std::int64_t>(1, std::llround(all));
}

Mixture::Mixture(std::span<const double> shares) {
  double rest = 0;
  for (const double share : shares) rest += share;
  for (std::size_t i = 0; i + 1 < shares.size(); ++i) {
    const double part = std::clamp(shares[i] / rest, 0.0, 1.0);
    // Not below what the shares say, so that 0.6 of 5 samples are 3 of them; nor above by more than
    // their rounding.
    constexpr double kRounding = 1 << 10;
    of_rest_.push_back(
        static_cast<std::int64_t>(std::min(std::ldexp(1.0, 62), std::ldexp(part, 62) + kRounding)));
    rest -= shares[i];
  }
}

Mixture::Place Mixture::place_of(std::int64_t sample) const {
  for (std::size_t i = 0; i < of_rest_.size(); ++i) {
    const auto before = [&](std::int64_t n) {  // of the first n samples of the rest
      return static_cast<std::int64_t>((static_cast<__int128>(of_rest_[i]) * n) >> 62);
    };
    if (before(sample + 1) > before(sample)) return {i, before(sample)};
    sample -= before(sample);
  }
  return {of_rest_.size(), sample};
}

SampleTokens training_samples(const io::TokenCorpus& corpus, const deck::Deck& deck) {
  const auto seed = static_cast<std::uint64_t>(deck.run.seed);
  const io::Shuffle shuffle = shuffled(deck);
  if (deck.batch.curriculum.cuts_anew()) {
    return [cut = CutAnew(corpus.tokens() - 1, optim::Timeline(deck.batch, 0), seed, shuffle),
            length = deck.batch.sequence](std::int64_t sample) {
      const std::int64_t first = cut.first_token(sample);
      return Stretches{{first, first + length}};
    };
  }
  auto parts = training_sequences(corpus, deck);
  if (is_mixture(deck.data)) return mixed_samples(std::move(parts), deck);
  const std::int64_t together = samples_together(deck);
  return [all = parts[0], order = io::Sampler(parts[0].count() / together, seed, shuffle),
          together](std::int64_t sample) {
    return all[together * order.sequence_of(sample / together) + sample % together];
  };
}

CutAnew::CutAnew(std::int64_t tokens, const optim::Timeline& timeline, std::uint64_t seed,
                 io::Shuffle shuffle)
    : seed_(seed), shuffle_(shuffle) {
  const auto& phases = timeline.phases();
  std::vector<Piece> pieces;  // of the epoch that is not full yet
  std::int64_t used = 0;      // of its tokens
  for (std::size_t i = 0; i < phases.size(); ++i) {
    const std::int64_t length = phases[i].sequence, all = tokens / length;
    TESSERA_CHECK(all > 0, "{} tokens for a sequence of {}", tokens, length);
    const bool last = i + 1 == phases.size();
    std::int64_t left =
        last ? std::numeric_limits<std::int64_t>::max() : phases[i + 1].samples - phases[i].samples;
    if (!pieces.empty()) {
      const std::int64_t taken = std::min(left, (tokens - used) / length);
      if (taken > 0) pieces.push_back({.length = length, .count = taken});
      used += taken * length;
      left -= taken;
      if (left == 0) continue;
      add(std::exchange(pieces, {}), 1);
    }
    // The last epochs go on for ever; before, what is left of an epoch is the next phase's.
    const std::int64_t whole = last ? 1 : (left - 1) / all;
    if (whole > 0) add({{.length = length, .count = all}}, whole);
    if (last) return;
    left -= whole * all;
    pieces.push_back({.length = length, .count = left});
    used = left * length;
  }
}

void CutAnew::add(std::vector<Piece> pieces, std::int64_t repeats) {
  std::int64_t sequences = 0;
  for (const Piece& piece : pieces) sequences += piece.count;
  epochs_.push_back({.sample = next_sample_,
                     .epoch = next_epoch_,
                     .sequences = sequences,
                     .pieces = std::move(pieces)});
  next_sample_ += repeats * sequences;
  next_epoch_ += repeats;
}

std::int64_t CutAnew::first_token(std::int64_t sample) const {
  TESSERA_CHECK(sample >= 0, "sample {}", sample);
  const Epochs& at = *(std::ranges::upper_bound(epochs_, sample, {}, &Epochs::sample) - 1);
  const std::int64_t epoch = at.epoch + (sample - at.sample) / at.sequences;
  std::int64_t index = (sample - at.sample) % at.sequences;
  std::size_t which = 0;
  while (index >= at.pieces[which].count) index -= at.pieces[which++].count;
  const std::int64_t count = at.pieces[which].count;
  const io::Sampler order(count, seed_, shuffle_);
  return token_of(at.pieces, which, order.sequence_of(epoch * count + index));
}

/// Where sequence `sequence` of a phase lies. Of n sequences of a phase, those before stretch g are
/// n g / G, rounded down.
std::int64_t CutAnew::token_of(const std::vector<Piece>& pieces, std::size_t which,
                               std::int64_t sequence) const {
  const std::int64_t stretches = shuffle_ == io::Shuffle::yes ? 4096 : 1;  // G; in order: one
  const std::int64_t stretch =
      ((sequence + 1) * stretches - 1) / pieces[which].count;  // the last that begins before it
  std::int64_t token = sequence * pieces[which].length;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i == which) continue;
    const std::int64_t before = i < which ? stretch + 1 : stretch;
    token += pieces[i].count * before / stretches * pieces[i].length;
  }
  return token;
}

}  // namespace tessera::data
