// What may differ between a checkpoint's deck and the deck that resumes it.
#pragma once

#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "deck/schema.hpp"

namespace tessera::deck {

struct ResumeDifference {
  std::string key;
  std::string saved;  // as TOML; "unset" for a key left out
  std::string now;
  OnResume rule = OnResume::free;
};

/// Every key whose value differs, in the schema's order.
std::vector<ResumeDifference> compare_for_resume(const Deck& saved, const Deck& now);

}  // namespace tessera::deck
