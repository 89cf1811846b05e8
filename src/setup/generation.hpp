// The shapes of the passes in which sequences are gone on with.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "deck/load.hpp"
#include "plan/ir/plan.hpp"

namespace tessera::setup {

/// Throws DeckError, which begins with `name`, for a model that is not there to continue texts.
void check_continues(const deck::ModelSection& model, const deck::TaskSection& task,
                     std::string_view name);

/// Sequences that a data rank goes on with at once, at most.
inline constexpr std::int64_t kMostSequences = 4096;

/// How prompts go through the model.
enum class Prefill : std::uint8_t {
  one,      // one after another, each in as few passes as its tokens need
  several,  // the same, but their last passes, where these are as long as each other, are made
            // together, so that a CPU has enough to do
  all,  // side by side, some tokens of each in every pass, in as few as the longest needs: where
        // passes cost more than tokens, as they do where parameters come from elsewhere
  all_alike,  // the same in passes of one shape, of which ranks that divide experts send each other
              // tokens
};
/// Whether every pass is of all sequences.
constexpr bool is_side_by_side(Prefill p) { return p == Prefill::all || p == Prefill::all_alike; }

struct DecoderSize {
  std::int64_t slots = 0;  // of a data rank
  std::int64_t room = 0;   // tokens of each, at most
  std::int64_t pages = 0;  // of caches, which the slots share; 0: as many as all of them can fill
  Prefill prefill = Prefill::one;
  /// In which pipeline stages pass sequences on to each other; 1 where data ranks make their passes
  /// in step.
  std::int64_t micro_batches = 1;
};
/// Of sequences of up to `room` tokens. Pipeline stages pass sequences on in micro-batches, but
/// where ranks make their passes in step, which would gather parameters for each. Where the bits
/// are to be those of every layout they do not, nor do prompts go through the model side by side
/// because parameters come from elsewhere, be it from other ranks' shards.
DecoderSize decoder_size(const deck::Deck& deck, std::int64_t slots, std::int64_t room);

/// Of single tokens, then of prompts, from small to large.
std::vector<plan::PlanShape> decoder_shapes(const DecoderSize& size);

/// Pages with which none of these sequences, of so many tokens, ever waits for another one's: those
/// that the longest take which have slots at once. With `most_tokens` no more than for so many, but
/// enough for the longest one alone.
std::int64_t pages_for(std::vector<std::int64_t> sequences, const DecoderSize& size,
                       std::optional<std::int64_t> most_tokens);

/// Passes of several prompts of one length (Prefill::several): of eight, four or two, as there are
/// slots for them, the most first. On a CPU a prompt gets what it gets alone, to the bit.
std::vector<plan::PlanShape> together_shapes(const DecoderSize& size);

/// Of single tokens, as it brings up to date what ranks have of parameters (PlanShape::renews).
plan::PlanShape renewing_shape(const DecoderSize& size);
/// All of these that a deck's layout needs.
std::vector<plan::PlanShape> generation_shapes(const deck::Deck& deck, const DecoderSize& size);

/// Throws DeckError where keys and values of generation are to live elsewhere in a run of the deck,
/// which draws nothing.
void check_cache(const deck::LoadedDeck& loaded);

/// Of a deck whose model draws answers.
DecoderSize rollout_size(const deck::Deck& deck);
/// Those of its plans beside training's; none of a deck whose model draws nothing.
std::vector<plan::PlanShape> rollout_shapes(const deck::Deck& deck, std::int64_t data_ranks);

}  // namespace tessera::setup
