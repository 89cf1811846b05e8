// What started this process, as the launcher says in its environment: srun and mpirun do so whether
// or not the MPI library understands them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>

namespace tessera::comm {

struct Launch {
  std::string launcher;        // "srun"; empty: none that says so
  std::int64_t processes = 1;  // that it started, this one among them
};

using Environment = std::function<const char*(const char*)>;

/// Of the launcher nearest to this process: that of MPI, else the Slurm job step. The shells of
/// sbatch, salloc and srun --pty are no launch, though Slurm tells them of the job's tasks.
Launch launch_of_process(const Environment& variable = std::getenv);

/// For a program that is all of its run: throws DeckError when it was launched several times.
/// `because` says why each is a run of its own, and `instead` how to start it.
void refuse_copies(const Launch& launch, const std::string& because, const std::string& instead);

}  // namespace tessera::comm
