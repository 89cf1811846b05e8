#include "deck/problems.hpp"

#include <algorithm>
#include <tuple>

#include "core/error.hpp"
#include "core/terminal.hpp"

namespace tessera::deck {

void Problems::add(const SourceLocation& place, std::string_view key, std::string text) {
  all_.push_back({place, std::string(key), std::move(text)});
}

bool Problems::about(std::string_view key) const {
  return std::any_of(all_.begin(), all_.end(),
                     [&](const Problem& problem) { return problem.key == key; });
}

void Problems::throw_if_any() const {
  if (all_.empty()) return;
  std::vector<Problem> sorted = all_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Problem& a, const Problem& b) {
    return std::tie(a.place.file, a.place.line, a.place.column) <
           std::tie(b.place.file, b.place.line, b.place.column);
  });
  std::string lines;
  for (const Problem& problem : sorted) {
    if (!lines.empty()) lines += '\n';
    lines += printable(problem.place.text() + ": " + problem.text);
  }
  throw DeckError(Lines{lines});
}

}  // namespace tessera::deck
