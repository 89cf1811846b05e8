#include "train/leave.hpp"

#include "core/ending.hpp"
#include "core/terminal.hpp"
#include "core/thread.hpp"
#include "train/run_directory.hpp"

namespace tessera::train {

void leave_alone(const Job& job, const std::optional<std::filesystem::path>& run_directory) {
  const Ending ending = current_ending();
  const std::string who =
      job.mpi.size() > 1 ? fmt::format("rank {} on {}: ", job.mpi.rank(), comm::host_name()) : "";
  const std::string why = who + ending.text();
  tell(fmt::format("tessera: {}\n", why));
  // A communication error is an echo; the launcher's code says as much.
  if (run_directory && ending.code != ExitCode::comm) {
    try_within_a_second([directory = *run_directory, code = ending.code, why] {
      try {
        write_ended(directory, code, why);
      } catch (const Error&) {  // on the disk that failed, perhaps: the exit code must do
      }
    });
  }
  if (job.watchdog.watching()) job.watchdog.leave(ending.code, ending.text());
  comm::leave_at_once(static_cast<int>(ending.code));
}

}  // namespace tessera::train
