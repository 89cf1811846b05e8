#include "train/report/resolved.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "deck/load.hpp"
#include "io/file.hpp"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLargest = std::int64_t{64} << 20;  // bytes of a deck

fs::path resolved_file(const fs::path& directory) { return directory / "resolved.toml"; }

/// The number of a deck that is kept; 0 for any other file, as one that no number can follow.
std::int64_t number_of(const fs::path& path) {
  constexpr std::string_view kBegin = "resolved.", kEnd = ".toml";
  const std::string name = path.filename().string();
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return 0;
  const char *first = name.data() + kBegin.size(), *last = name.data() + name.size() - kEnd.size();
  std::int64_t number = 0;
  const auto read = std::from_chars(first, std::max(first, last), number);
  const bool ours = read.ec == std::errc() && read.ptr == last && *first != '0' && number > 0 &&
                    number < std::numeric_limits<std::int64_t>::max();
  return ours ? number : 0;
}

/// Keeps the deck that is there as another file, unless that was done before and resolved.toml not
/// replaced since, because the job was killed between the two.
void keep(const fs::path& directory) {
  const std::string text = io::read_text(resolved_file(directory), kLargest);
  const auto kept = kept_resolved(directory);
  if (!kept.empty() && io::read_text(kept.back(), kLargest) == text) return;
  const std::int64_t number = kept.empty() ? 1 : number_of(kept.back()) + 1;
  io::write_text(directory / fmt::format("resolved.{}.toml", number), text);
}

}  // namespace

std::optional<deck::Deck> last_resolved(const fs::path& directory) {
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

std::vector<fs::path> kept_resolved(const fs::path& directory) {
  std::vector<fs::path> kept;
  for (const fs::path& path : io::files_in(directory)) {
    if (number_of(path) > 0) kept.push_back(path);
  }
  std::ranges::sort(kept, {}, number_of);
  return kept;
}

void write_resolved(const deck::Deck& deck, const fs::path& directory) {
  const fs::path path = resolved_file(directory);
  if (io::path_exists(path)) {
    const auto last = last_resolved(directory);
    if (!last || !changes(*last, deck).empty()) keep(directory);
  }
  io::write_text(path, to_toml(deck));
}

}  // namespace tessera::train
