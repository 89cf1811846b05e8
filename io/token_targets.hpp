// Which tokens count as targets of the loss: beside PREFIX.bin and .idx a second indexed dataset,
// PREFIX.targets.bin and .targets.idx, of u8 elements, with the same documents of the same lengths:
// 1 where the token counts when it is what the model should have predicted, 0 where it does not.
// Where there is none, every token counts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "io/token_files.hpp"

namespace tessera::io {

/// The PREFIX of a token file that has an index.
std::filesystem::path prefix_of(const TokenCorpus::TokenFile& tokens);

/// PREFIX.targets, the prefix of the pair.
std::filesystem::path targets_prefix(const std::filesystem::path& prefix);
/// The targets beside a token file, where it has an index and there are such.
std::optional<std::filesystem::path> targets_of(const TokenCorpus::TokenFile& tokens);
/// Removes both files, durably; no error if they are not there.
void forget_targets(const std::filesystem::path& prefix);

/// How many of so many tokens of a corpus count. DataError as of TokenCorpus::read_targets.
std::int64_t count_targets(const TokenCorpus& corpus, std::int64_t first, std::int64_t count);

}  // namespace tessera::io
