// The parts of `tessera simulate`: one layout in detail, or all of them in search of the best.
#pragma once

#include <string>

#include "deck/machine.hpp"
#include "plan/prediction/simulate.hpp"
#include "verbs/planner.hpp"

namespace tessera::verbs {

/// What a step of a deck does on a machine, in the units that people compare.
struct Speed {
  double tokens_per_s = 0;
  double flop_rate = 0;       // of a rank, counted as 6 N + 6 L C T a token
  std::optional<double> mfu;  // where the machine file gives a peak
};
Speed speed_of(const Planner& planner, const plan::PlanShape& shape, double step_s,
               const deck::Machine& machine);

/// Bytes of a rank's device: what the deck allows, or what the machine has; 0: neither says.
std::int64_t device_memory(const deck::Deck& deck, const deck::Machine& machine);

/// The layout with the machine's threads and, where it says 0 nodes, as many as its ranks fill.
/// Throws DeckError where they do not fill them evenly.
LayoutOptions on_machine(LayoutOptions layout, const deck::Machine& machine);

/// Where the deck leaves traffic open: plans for what a run would choose on the machine. Returns
/// what and why, for people; empty where nothing is open.
std::string settle_traffic(Planner& planner, const deck::Machine& machine);

/// The layouts of the deck's model and batch on these ranks that take least time, with the reasons
/// that others are not among them: among these, that they were not looked at `within` seconds.
/// Throws DeckError where none is possible.
std::string search_text(const LayoutOptions& layout, const deck::Machine& machine, double within);

}  // namespace tessera::verbs
