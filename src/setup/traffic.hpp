// What a deck says of traffic between nodes and of ZeRO's, and what it leaves open with "auto":
// zero.secondary, zero.quantize.weights and zero.quantize.gradients (ZeRO++, Wang et al. 2023).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "deck/load.hpp"
#include "deck/machine.hpp"
#include "plan/ir/inputs.hpp"

namespace tessera::setup {

/// Throws DeckError where training on ranks on these nodes has no effect of a key about traffic
/// (deck::check_quantized), or where zero.secondary = "node", but not all groups of data ranks are
/// on several nodes, as many ranks of each on every node; likewise parallel.expert_exchange =
/// "by_node" of the ranks that divide experts; or where no step has two micro-batches for
/// parallel.expert_overlap.
void check_traffic(const deck::LoadedDeck& loaded, std::span<const int> node_of);

/// A form of the traffic: what the three keys may say.
struct Traffic {
  std::variant<deck::Secondary, std::int64_t> secondary = deck::Secondary::none;
  deck::QuantizedWeights weights = deck::QuantizedWeights::none;
  deck::QuantizedGradients gradients = deck::QuantizedGradients::none;
  bool operator==(const Traffic&) const = default;
};
/// Whether one of the three keys is "auto".
bool leaves_traffic_open(const deck::Deck& deck);
/// The forms that a deck which leaves some open can have on ranks on these nodes: each open key
/// "none" or what "auto" stands for, where that has an effect and nothing else in the deck is
/// against it. First the one with "none" for all, last the one with "none" for none.
std::vector<Traffic> open_traffic(const deck::LoadedDeck& loaded, std::span<const int> node_of);
/// What a deck says.
Traffic traffic_of(const deck::Deck& deck);
/// Lets the deck say so; keys that then have no effect have their defaults.
void set_traffic(deck::Deck& deck, const Traffic& traffic);
/// "zero.secondary = "none", zero.quantize.weights = "int8", ...": the keys that `deck` leaves
/// open.
std::string open_keys(const deck::Deck& deck, const Traffic& traffic);

/// What a step takes in each of some forms, in seconds, as simulated (plan::estimate_step); of
/// those that fit and are within 2 % of the shortest the one that differs least from the first.
struct TrafficChoice {
  struct Tried {
    Traffic traffic;
    double step = 0;
    bool fits = true;  // as far as it was looked at
  };
  std::vector<Tried> tried;  // as the forms given
  Traffic chosen;
};
/// `inputs_of` makes a plan's inputs from a deck in which nothing is open; `fits` says whether
/// there can be a rank whose arenas are so large, and is asked of the largest of each stage. Where
/// no form fits the first is chosen.
TrafficChoice choose_traffic(const deck::Deck& deck, std::span<const Traffic> forms,
                             const std::function<plan::PlanInputs(const deck::Deck&)>& inputs_of,
                             const std::function<bool(const plan::ArenaBytes&)>& fits,
                             const deck::Machine& machine);
/// The arenas of plan::largest_places in the largest steps that train and save.
std::vector<plan::ArenaBytes> largest_arenas(const plan::PlanInputs& inputs,
                                             std::span<const plan::PlanShape> shapes);
/// The choice for people, and why: a sentence without its end.
std::string explain(const deck::Deck& open, const TrafficChoice& choice,
                    const deck::Machine& machine);

}  // namespace tessera::setup
