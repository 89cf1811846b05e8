// A deck: TOML, in which a line "#--set KEY=VALUE" stands for one on the command line.
#include "deck/ranks.hpp"
#include "deck/resume.hpp"
#include "target.hpp"

namespace tessera::fuzz {
namespace {

std::vector<std::string> sets_in(std::string_view text) {
  constexpr std::string_view kMark = "#--set ";
  std::vector<std::string> sets;
  for (std::size_t at = text.find(kMark); at != text.npos; at = text.find(kMark, at)) {
    at += kMark.size();
    sets.emplace_back(text.substr(at, text.find('\n', at) - at));
  }
  return sets;
}

/// The resolved deck, as a run directory has it, must be the deck.
void read_again(const deck::Deck& deck) {
  const std::string resolved = to_toml(deck);
  const deck::Deck again = deck::parse_deck(resolved, "resolved.toml").deck;
  for (const auto& difference : compare_for_resume(deck, again)) {
    throw InternalError(
        fmt::format("{} = {} became {}", difference.key, difference.saved, difference.now));
  }
  TESSERA_CHECK(to_toml(again) == resolved, "{}", resolved);
}

}  // namespace

const ExitCode kRefusal = ExitCode::deck;

void read(const std::string& input) {
  const deck::LoadedDeck loaded =
      deck::parse_deck(input, TESSERA_SOURCE_DIR "/inputs/fuzzed.toml", sets_in(input));
  certainly([&] { read_again(loaded.deck); });
  try {
    deck::check_ranks(loaded, 8);
  } catch (const DeckError&) {
    return;  // a deck of other numbers of ranks
  }
  certainly([&] { return deck::legal_micros(loaded, 8); });
}

}  // namespace tessera::fuzz
