#include "data/samples.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "core/error.hpp"

namespace tessera::data {

SampleBegin sequences_of(const io::Sampler& sampler, std::int64_t length) {
  return [sampler, length](std::int64_t sample) { return sampler.sequence_of(sample) * length; };
}

SampleBegin training_samples(const io::TokenCorpus& corpus, const deck::Deck& deck) {
  const auto seed = static_cast<std::uint64_t>(deck.run.seed);
  const auto shuffle = deck.data.shuffle ? io::Shuffle::yes : io::Shuffle::no;
  const std::int64_t length = deck.batch.sequence;
  if (!deck.batch.curriculum.cuts_anew())
    return sequences_of(io::Sampler(corpus.sequences(length), seed, shuffle), length);
  return [cut = CutAnew(corpus.tokens() - 1, optim::Timeline(deck.batch, 0), seed, shuffle)](
             std::int64_t sample) { return cut.first_token(sample); };
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
