#include "io/cuts.hpp"

#include <algorithm>
#include <array>

#include "core/error.hpp"

namespace tessera::io {
namespace {

struct BehaviorWord {
  std::string_view word;
  SplitBehavior behavior;
};
constexpr std::array kBehaviors = {
    BehaviorWord{"Removed", SplitBehavior::removed},
    BehaviorWord{"Isolated", SplitBehavior::isolated},
    BehaviorWord{"MergedWithPrevious", SplitBehavior::merged_with_previous},
    BehaviorWord{"MergedWithNext", SplitBehavior::merged_with_next},
    BehaviorWord{"Contiguous", SplitBehavior::contiguous}};

/// Whether there is a cut between two neighbours.
bool apart(const Cut& left, const Cut& right, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::removed:
    case SplitBehavior::isolated: return true;
    case SplitBehavior::merged_with_previous: return left.match || !right.match;
    case SplitBehavior::merged_with_next: return !left.match || right.match;
    case SplitBehavior::contiguous: return left.match != right.match;
  }
  return true;
}

}  // namespace

SplitBehavior split_behavior(const JsonCursor& word) {
  const auto row = std::ranges::find(kBehaviors, word.text(), &BehaviorWord::word);
  if (row != kBehaviors.end()) return row->behavior;
  word.fail(
      fmt::format("\"{}\" is not supported; allowed: Removed, Isolated, MergedWithPrevious, "
                  "MergedWithNext and Contiguous",
                  word.text()));
}

void for_each_piece(const std::vector<Cut>& cuts, SplitBehavior behavior,
                    const std::function<void(std::string_view)>& piece) {
  for (std::size_t first = 0; first < cuts.size();) {
    std::size_t last = first + 1;
    while (last < cuts.size() && !apart(cuts[last - 1], cuts[last], behavior)) ++last;
    const char* begin = cuts[first].text.data();
    const char* end = cuts[last - 1].text.data() + cuts[last - 1].text.size();
    const bool removed = behavior == SplitBehavior::removed && cuts[first].match;
    if (!removed && end > begin) piece({begin, static_cast<std::size_t>(end - begin)});
    first = last;
  }
}

}  // namespace tessera::io
