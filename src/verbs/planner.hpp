// Plans of a deck on ranks that are not there: what check and plan are made from.
#pragma once

#include <memory>
#include <string>

#include "deck/load.hpp"
#include "plan/prediction/survey.hpp"
#include "setup/traffic.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {

/// DECK --ranks N [--nodes M].
struct LayoutOptions {
  DeckOptions deck;
  std::int64_t ranks = 1, nodes = 1;
  /// In the place of memory.device as a budget alone; empty: the deck's. Plans are those of the
  /// deck as it is.
  std::string device_memory;
  int threads = 0;  // of each rank; 0: as if this machine were one of the nodes
  void add_to(CLI::App& app);
};

struct Planner {
  deck::LoadedDeck loaded;
  std::vector<plan::PlanShape> shapes;
  plan::PlanInputs inputs;  // with the first of the devices
  std::string device_name;  // what the plans are for
  /// They say how much scratch kernels want; one for each thread that makes plans.
  std::vector<std::unique_ptr<kernels::Device>> devices;

  plan::Survey survey(std::span<const MeshPlace> places) const;

  // Where the deck leaves traffic open (setup/traffic.hpp):
  deck::Deck as_given;
  std::vector<setup::Traffic> open;  // the forms; `loaded` has the last until another is set
  void set(const setup::Traffic& traffic);
  /// What the plans are made from if this is the deck.
  plan::PlanInputs inputs_of(const deck::Deck& deck) const { return inputs_of(deck, shapes); }
  plan::PlanInputs inputs_of(const deck::Deck& deck,
                             std::span<const plan::PlanShape> shapes_of_deck) const;
  std::vector<int> node_of;
  bool nccl = false, device_is_host = false;  // as setup::ComputesOn has them
};

/// ", before momentum is compressed" and the like; "" where it never is.
std::string phase_text(const Planner& planner, const plan::PlanShape& shape);

/// Bytes of memory.device; nothing where the deck does not give a number.
std::optional<std::int64_t> device_budget(const deck::Deck& deck);

/// Throws DeckError where the deck does not fit the ranks, or the ranks the nodes. `generates`: for
/// plans of generation, as of decks whose model draws answers.
Planner make_planner(const LayoutOptions& layout, bool generates = false);

}  // namespace tessera::verbs
