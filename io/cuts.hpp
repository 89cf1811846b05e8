// Cutting a text at what a pattern matches, in the ways that a tokenizer.json calls "behavior".
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "io/json.hpp"

namespace tessera::io {

/// What becomes of the matches: a piece each, part of the piece before or behind, with what follows
/// directly one piece, or nothing.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// DataError, naming the place, for another word.
SplitBehavior split_behavior(const JsonCursor& word);

/// Matches and what lies between them, in order; together they are the text.
struct Cut {
  std::string_view text;
  bool match = false;
};

/// Calls `piece` for each piece that is left, in order, none empty.
void for_each_piece(const std::vector<Cut>& cuts, SplitBehavior behavior,
                    const std::function<void(std::string_view)>& piece);

}  // namespace tessera::io
