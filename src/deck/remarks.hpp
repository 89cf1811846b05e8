// What a user should know of a deck with which nothing is wrong.
#pragma once

#include <string>

#include "deck/load.hpp"

namespace tessera::deck {

/// A line for each value that a file gives of another optimizer than --set names, and that is not
/// what the new one has by default: the same key may mean something else to it; and for each key of
/// positions that is not what the model directory says.
std::string remarks_text(const LoadedDeck& loaded);

}  // namespace tessera::deck
