#include "train/report/resolved.hpp"

#include <fmt/format.h>

#include "core/error.hpp"
#include "deck/load.hpp"
#include "io/file.hpp"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

fs::path resolved_file(const fs::path& directory) { return directory / "resolved.toml"; }

fs::path next_kept_file(const fs::path& directory) {
  for (int n = 1;; ++n) {
    const fs::path path = directory / fmt::format("resolved.{}.toml", n);
    if (!io::path_exists(path)) return path;
  }
}

}  // namespace

std::optional<deck::Deck> last_resolved(const fs::path& directory) {
  constexpr std::int64_t kLargest = 1 << 20;
  const fs::path path = resolved_file(directory);
  if (!io::path_exists(path)) return std::nullopt;
  try {
    return deck::parse_deck(io::read_text(path, kLargest), path.string()).deck;
  } catch (const Error& e) {
    if (e.exit_code() == ExitCode::io) throw;
    return std::nullopt;  // written by another version, or changed by somebody
  }
}

std::vector<deck::ResumeDifference> changes(const deck::Deck& before, const deck::Deck& now) {
  auto all = deck::compare_for_resume(before, now);
  std::erase_if(all, [](const auto& difference) { return difference.key == "run.deadline"; });
  return all;
}

void write_resolved(const deck::Deck& deck, const fs::path& directory) {
  const fs::path path = resolved_file(directory);
  if (io::path_exists(path)) {
    const auto last = last_resolved(directory);
    if (!last || !changes(*last, deck).empty()) io::rename_path(path, next_kept_file(directory));
  }
  io::write_text(path, to_toml(deck));
}

}  // namespace tessera::train
