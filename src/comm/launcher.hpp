// What started this process, as its environment says: srun and mpirun set variables there, whether
// or not the MPI library understands them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

namespace tessera::comm {

struct Launch {
  std::string launcher;        // "srun"; empty: none is known
  std::int64_t processes = 1;  // how many it started, this one included
  std::int64_t number = 0;     // which of them this one is
};

using Environment = std::function<const char*(const char*)>;

/// By the launcher nearest to this process: that of MPI, else the Slurm job step. The shells of
/// sbatch, salloc and srun --pty are no launch, though Slurm sets the job's number of tasks there.
Launch launch_of_process(const Environment& variable = std::getenv);

/// After how many seconds Open MPI's mpirun kills its ranks when it gets SIGTERM or Ctrl-C; nothing
/// for other launchers. It lets one delay pass before it passes SIGTERM on, and another before
/// SIGKILL (Open MPI 4.1, odls_base_sigkill_timeout).
std::optional<std::int64_t> seconds_to_kill(const Environment& variable = std::getenv);
/// Whether Ctrl-C in this process's terminal is a signal to its parent.
bool ctrl_c_is_the_parents();

/// For a program that runs as one process: throws if it was launched several times, in each of them
/// alike (AgreedError, of a deck or usage). `because` says why each process would be a run of its
/// own, `instead` how to start it.
void refuse_copies(const Launch& launch, const std::string& because, const std::string& instead);

}  // namespace tessera::comm
