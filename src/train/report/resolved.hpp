// The resolved decks of a run's starts: resolved.toml is the newest one's; resolved.1.toml,
// resolved.2.toml and so on are those of before, the oldest first, each with other values than the
// one that follows it.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "deck/resume.hpp"

namespace tessera::train {

/// The deck of the run's last start; nothing where there was none, or where resolved.toml cannot be
/// understood.
std::optional<deck::Deck> last_resolved(const std::filesystem::path& directory);

/// Every key that differs but run.deadline, which is another moment in each start of a batch job.
std::vector<deck::ResumeDifference> changes(const deck::Deck& before, const deck::Deck& now);

/// The decks of earlier starts that are kept, the oldest first. Throws IoError.
std::vector<std::filesystem::path> kept_resolved(const std::filesystem::path& directory);

/// Writes the deck of a start as resolved.toml; the one that is there is kept under the next number
/// if anything has changed. From the first start on there is a whole resolved.toml at every moment.
/// Throws IoError.
void write_resolved(const deck::Deck& deck, const std::filesystem::path& directory);

}  // namespace tessera::train
