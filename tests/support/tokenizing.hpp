// Text into token files, as the ranks of `tessera tokenize` make them, one after another.
#pragma once

#include <list>
#include <vector>

#include "io/tokenize.hpp"

namespace tessera::test {

inline io::TokenizeSummary tokenize_in_parts(
    const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& prefix,
    io::Tokenizer& tokenizer, std::int64_t count, const io::DocumentRules& rules = {},
    const io::TokenizeProgress& progress = {},
    const std::optional<io::LabelNames>& known = std::nullopt) {
  std::list<io::TokenizedPart> parts;
  std::vector<io::PartFindings> findings;
  for (std::int64_t i = 0; i < count; ++i) {
    const io::TokenizePart part{.index = i, .count = count};
    const auto& made = parts.emplace_back(inputs, prefix, tokenizer, part, progress, rules);
    findings.push_back(io::PartFindings::unpack(made.findings().pack()));
  }
  io::TokenizeSummary summary;
  for (io::TokenizedPart& part : parts) summary = part.place(findings, known);
  parts.front().publish(tokenizer, summary);
  return summary;
}

}  // namespace tessera::test
