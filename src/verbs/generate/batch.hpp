// All prompts of a file, continued by all ranks. Whichever data rank has a free slot gets the next
// prompt, and what becomes of that does not depend on which one it was.
#pragma once

#include "verbs/generate/options.hpp"

namespace tessera::verbs {

/// Collective over the job's ranks.
ExitCode continue_prompts(const GenerateOptions& o, Speaker& speaker, const train::Job& job);

}  // namespace tessera::verbs
