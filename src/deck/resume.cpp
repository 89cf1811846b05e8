#include "deck/resume.hpp"

namespace tessera::deck {

std::vector<ResumeDifference> compare_for_resume(const Deck& saved, const Deck& now) {
  std::vector<ResumeDifference> differences;
  for (const SchemaRow& row : schema_rows()) {
    const Value before = row.field.get(saved);
    const Value after = row.field.get(now);
    if (before == after) continue;
    differences.push_back({.key = std::string(row.name),
                           .saved = value_text(before),
                           .now = value_text(after),
                           .rule = row.rules.on_resume});
  }
  return differences;
}

}  // namespace tessera::deck
