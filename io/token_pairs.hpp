// Pairs of answers: beside PREFIX.bin and .idx a file PREFIX.pairs.json, {"pairs": 120}, says that
// documents 2 i and 2 i + 1 of the tokens answer the same prompt, and that the former was chosen
// and the latter rejected. Which tokens are of the answers, PREFIX.targets says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "io/token_files.hpp"

namespace tessera::io {

/// PREFIX.pairs.json.
std::filesystem::path pairs_file(const std::filesystem::path& prefix);
/// How many pairs a token file says that it has; nothing where it says nothing. DataError for a
/// file that is no pairs.json.
std::optional<std::int64_t> pairs_of(const TokenCorpus::TokenFile& tokens);
/// Whole or not at all.
void write_pairs(const std::filesystem::path& prefix, std::int64_t pairs);
/// Removes it, durably; no error if it is not there.
void forget_pairs(const std::filesystem::path& prefix);

}  // namespace tessera::io
