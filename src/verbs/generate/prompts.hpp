// The prompts of a file of JSON lines.
#pragma once

#include "verbs/generate/options.hpp"

namespace tessera::verbs {

struct Prompt {
  std::string told;  // what the line says, as JSON: an object of one member
  std::vector<std::int32_t> tokens;
};

/// In the order of the file. DataError, with file and line, for one without tokens, and for one
/// of more than `context` tokens.
std::vector<Prompt> read_prompts(const GenerateOptions& o, Speaker& speaker, std::int64_t context);

}  // namespace tessera::verbs
