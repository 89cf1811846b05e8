// What a preset and a family say about the model keys that a deck leaves out, and an optimizer
// about its own.
#pragma once

#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "deck/value.hpp"

namespace tessera::deck {

/// A full key name and the value it gets unless something stronger sets it.
struct ImpliedKey {
  std::string name;
  Value value;
};

std::vector<ImpliedKey> preset_keys(Preset preset);
std::vector<ImpliedKey> family_keys(Family family);
/// The keys that not every optimizer uses: those that this one does, with its defaults.
std::vector<ImpliedKey> optimizer_keys(OptimizerName optimizer);
/// Those that it does not use.
std::vector<std::string> unused_optimizer_keys(OptimizerName optimizer);
/// The number of ZeRO stages that it can have, from 0 on.
std::int64_t zero_stages(OptimizerName optimizer);

}  // namespace tessera::deck
