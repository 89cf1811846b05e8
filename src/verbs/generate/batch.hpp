// All prompts of a file, continued by all ranks. Each rank has the whole model; whichever has a
// free slot gets the next prompt, and what becomes of that does not depend on which one it was.
#pragma once

#include "verbs/generate/options.hpp"

namespace tessera::verbs {

/// Collective over the job's ranks.
ExitCode continue_prompts(const GenerateOptions& o, Speaker& speaker, const comm::Control& control,
                          const OwnMachine& machine);

}  // namespace tessera::verbs
