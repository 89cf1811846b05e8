#include "comm/launcher.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

#include "core/error.hpp"

namespace tessera::comm {

namespace {

constexpr const char* kRanksOfOpenMpi = "OMPI_COMM_WORLD_SIZE";

std::optional<std::int64_t> number_in(const Environment& variable, const char* name) {
  const char* text = variable(name);
  if (text == nullptr) return std::nullopt;
  const std::string_view all(text);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), value);
  if (error != std::errc() || end != all.data() + all.size()) return std::nullopt;
  return value;
}

}  // namespace

Launch launch_of_process(const Environment& variable) {
  const auto number = [&](const char* name) { return number_in(variable, name); };
  // mpirun may itself use srun, with a step of one task a node, so what it says comes first.
  if (const auto n = number(kRanksOfOpenMpi))
    return {"Open MPI's mpirun", *n, number("OMPI_COMM_WORLD_RANK").value_or(0)};
  if (const auto n = number("PMI_SIZE"))
    return {"mpiexec (or srun --mpi=pmi2)", *n, number("PMI_RANK").value_or(0)};
  // From here on steps are Slurm's own: the shells of sbatch and salloc, and what watches a job.
  constexpr std::int64_t kReserved = 0xfffffff0;
  const auto step = number("SLURM_STEP_ID");
  if (!step || *step >= kReserved) return {};
  // srun --pty gives one of its tasks the terminal: what is typed there is no task itself.
  const bool typed =
      variable("SLURM_PTY_PORT") != nullptr && number("SLURM_TASK_PID") != std::int64_t{getpid()};
  if (typed) return {};
  const auto tasks = number("SLURM_STEP_NUM_TASKS");
  return {"srun", tasks ? *tasks : number("SLURM_NTASKS").value_or(1),
          number("SLURM_PROCID").value_or(0)};
}

std::optional<std::int64_t> seconds_to_kill(const Environment& variable) {
  if (!number_in(variable, kRanksOfOpenMpi)) return std::nullopt;
  return 2 * number_in(variable, "OMPI_MCA_odls_base_sigkill_timeout").value_or(1);
}

bool ctrl_c_is_the_parents() {
  const int terminal = ::open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);
  if (terminal < 0) return false;
  const pid_t foreground = ::tcgetpgrp(terminal);
  ::close(terminal);
  return foreground == ::getpgid(::getppid());
}

void refuse_copies(const Launch& launch, const std::string& because, const std::string& instead) {
  if (launch.processes <= 1) return;
  throw AgreedError(ExitCode::deck,
                    fmt::format("{} separate programs were started by {}, {}: {}", launch.processes,
                                launch.launcher, because, instead),
                    std::source_location::current());
}

}  // namespace tessera::comm
