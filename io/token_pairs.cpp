#include "io/token_pairs.hpp"

#include <nlohmann/json.hpp>

#include "io/file.hpp"
#include "io/json.hpp"
#include "io/token_targets.hpp"

namespace tessera::io {
namespace fs = std::filesystem;

constexpr std::int64_t kLargestPairs = 4096;  // of the file, in bytes
constexpr std::int64_t kMostPairs = std::int64_t{1} << 53;

fs::path pairs_file(const fs::path& prefix) { return prefix.string() + ".pairs.json"; }

std::optional<std::int64_t> pairs_of(const TokenCorpus::TokenFile& tokens) {
  if (!tokens.index) return std::nullopt;
  const fs::path file = pairs_file(prefix_of(tokens));
  if (!path_exists(file)) return std::nullopt;
  const JsonDocument document(read_text(file, kLargestPairs), file.string());
  return document.root()["pairs"].integer(1, kMostPairs);
}

void write_pairs(const fs::path& prefix, std::int64_t pairs) {
  write_text(pairs_file(prefix), nlohmann::json{{"pairs", pairs}}.dump() + "\n");
}

void forget_pairs(const fs::path& prefix) { remove_durably(pairs_file(prefix)); }

}  // namespace tessera::io
