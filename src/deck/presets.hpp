// What a family and a preset say about the model keys that a deck leaves out.
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

}  // namespace tessera::deck
