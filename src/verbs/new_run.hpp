// A run directory that begins with given weights: one checkpoint of step 0, and a deck that trains
// it on.
#pragma once

#include <filesystem>
#include <string>

#include "verbs/model_source.hpp"

namespace tessera::verbs {

/// A path in full, without a slash at its end.
std::filesystem::path in_full(const std::filesystem::path& path);

/// DeckError where the directory holds checkpoints or a deck already.
void refuse_to_overwrite(const std::filesystem::path& run_directory);

/// Makes the run directory from the source's weights, as master weights for any optimizer to begin
/// with, and says so on stdout. `verb` makes it, and `origin` is what of: both are for people, and
/// for the checkpoint. Throws IoError, and what the source throws: then the directory, or what
/// there was of it, is as refuse_to_overwrite() has found it.
void write_new_run(const std::filesystem::path& run_directory, const ModelSource& source,
                   const std::string& verb, const std::string& origin);

}  // namespace tessera::verbs
