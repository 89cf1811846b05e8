#include "deck/resume.hpp"

namespace tessera::deck {
namespace {

/// Where a curriculum cuts the corpus anew, which tokens a sample has follows from the batches and
/// lengths of all steps.
OnResume rule_of(const SchemaRow& row, const Deck& saved, const Deck& now) {
  const bool cuts = saved.batch.curriculum.cuts_anew() || now.batch.curriculum.cuts_anew();
  const bool of_cut =
      row.name == "batch.curriculum" || row.name == "batch.global" || row.name == "batch.ramp";
  return cuts && of_cut ? OnResume::refused : row.rules.on_resume;
}

}  // namespace

std::vector<ResumeDifference> compare_for_resume(const Deck& saved, const Deck& now) {
  std::vector<ResumeDifference> differences;
  for (const SchemaRow& row : schema_rows()) {
    const Value before = row.field.get(saved);
    const Value after = row.field.get(now);
    if (before == after) continue;
    differences.push_back({.key = std::string(row.name),
                           .saved = value_text(before),
                           .now = value_text(after),
                           .rule = rule_of(row, saved, now)});
  }
  return differences;
}

}  // namespace tessera::deck
