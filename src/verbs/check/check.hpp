// The parts of `tessera check`: what a deck means on a number of ranks, before a job is queued for
// them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "verbs/planner.hpp"

namespace tessera::verbs {

/// Share of the stages' time that is spent waiting, as the deck has it and with stages that cost
/// the same.
struct Bubble {
  double given = 0, equal = 0;
};
Bubble bubble_of(const Planner& planner);

/// A deck on a number of ranks, and what they need.
struct Checked {
  LayoutOptions layout;
  Planner planner;
  std::vector<plan::RankFigures> figures;  // of one rank of each kind
  std::int64_t meetings = 0;               // of stages, in a step, proved to fit
  Bubble bubble;                           // not of variants

  const deck::Deck& deck() const { return planner.loaded.deck; }
  const Mesh& mesh() const { return planner.inputs.layout.mesh; }
  std::int64_t micro_batches() const { return planner.shapes.front().micro_batches; }
  /// The figures of the rank that holds most memory.
  const plan::RankFigures& largest_rank() const;
  /// The most of any rank, each class of links by itself.
  comm::WireBytes sent() const;
  double flop() const;
};
Checked check_layout(const LayoutOptions& layout);
/// The same with other values of the deck ("section.key=value"), of the largest rank of each stage
/// only. Throws DeckError where the deck does not allow them.
Checked check_other(const LayoutOptions& layout, const std::vector<std::string>& sets);
/// The same; nothing where the deck does not allow them, or train would not.
std::optional<Checked> check_variant(const LayoutOptions& layout,
                                     const std::vector<std::string>& sets);

// Texts for people, of one line or more, each ended.
std::string rank_map(const plan::PlanInputs& inputs);
std::string pipeline_text(const Checked& checked);
std::string traffic_text(const Checked& checked);
std::string memory_text(const Checked& checked);
/// The deck's data files, and the tokenizers that they and the model were made with; a note where
/// they are not here. Throws DataError for what cannot be used, also where files are missing in a
/// directory that is here, and where tokenizers differ.
std::string data_text(const deck::LoadedDeck& loaded);
/// What the layout wastes, or, where it does not fit, what would make it.
std::string advice_text(const Checked& checked);
/// The map of ranks, the pipeline, the traffic, the memory and the advice.
std::string plans_text(const Checked& checked);
enum class PictureFormat : std::uint8_t { text, svg };
/// Learning rate, batch and length of sequences over the run's steps. Throws DeckError where the
/// deck does not fit the ranks, if they are given; where it counts epochs and its data is not here,
/// DataError.
std::string schedule_text(const DeckOptions& deck, std::optional<std::int64_t> ranks,
                          PictureFormat format);
/// Model states for all ZeRO stages and offload choices.
std::string options_text(const LayoutOptions& layout);
/// The largest batch.micro that fits. Throws DeckError without a budget, MemoryError if none fits.
std::string fit_text(const LayoutOptions& layout);
/// What passes of generation take on a machine, by the number of sequences, up to where more are no
/// gain or do not fit. Throws DeckError for a machine file that does not say what the plans need.
std::string generation_text(const LayoutOptions& layout, const std::string& machine_file);

}  // namespace tessera::verbs
