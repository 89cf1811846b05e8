#include "train/guards/leave.hpp"

#include "core/ending.hpp"
#include "core/terminal.hpp"
#include "core/thread.hpp"
#include "train/report/run_directory.hpp"

namespace tessera::train {

namespace {

void say_why(const Job& job, ExitCode code, const std::string& reason,
             const std::optional<std::filesystem::path>& run_directory) {
  const std::string who =
      job.mpi.size() > 1 ? fmt::format("rank {} on {}: ", job.mpi.rank(), comm::host_name()) : "";
  const std::string why = who + reason;
  tell(fmt::format("tessera: {}\n", why));
  // A communication error is mostly the consequence of another rank's failure, and the launcher's
  // exit code says as much.
  if (!run_directory || code == ExitCode::comm) return;
  // The disk may be what failed: then the exit code must be enough.
  try_within_a_second(
      [directory = *run_directory, code, why] { write_ended(directory, code, why); });
}

}  // namespace

void leave_alone(const Job& job, const std::optional<std::filesystem::path>& run_directory) {
  const Ending ending = current_ending();
  std::string reason;
  try {
    reason = ending.text();
    say_why(job, ending.code, reason, run_directory);
  } catch (...) {  // without memory or a terminal: the exit code must do
  }
  if (job.watchdog.watching()) job.watchdog.leave(ending.code, reason);
  comm::leave_at_once(static_cast<int>(ending.code));
}

}  // namespace tessera::train
