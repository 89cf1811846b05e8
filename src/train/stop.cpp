#include "train/stop.hpp"

#include <signal.h>
#include <sys/stat.h>

#include <cstring>
#include <ctime>

#include "core/error.hpp"

namespace tessera::train {
namespace {

volatile sig_atomic_t stop_signal = 0;  // the one thing a signal handler may touch

void on_signal(int number) { stop_signal = number; }

}  // namespace

void catch_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGUSR1, &action, nullptr);
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
}

StopRequests::StopRequests(const deck::RunSection& run, const std::filesystem::path& directory,
                           bool leads) {
  if (run.time_limit) time_limit_ = run.time_limit->count;
  if (!leads) return;
  deadline_ = run.deadline;
  stop_file_ = directory / "stop";
}

std::optional<std::string> StopRequests::reason(double ahead_s) const {
  if (stop_signal != 0) return fmt::format("signal SIG{}", sigabbrev_np(stop_signal));
  const auto elapsed = std::chrono::steady_clock::now() - start_;
  if (time_limit_ && elapsed >= std::chrono::seconds(*time_limit_)) return "run.time_limit";
  if (deadline_ &&
      static_cast<double>(std::time(nullptr)) + ahead_s >= static_cast<double>(*deadline_)) {
    return "run.deadline";
  }
  struct stat info;
  if (!stop_file_.empty() && stat(stop_file_.c_str(), &info) == 0)
    return "the file " + stop_file_.string();
  return std::nullopt;
}

bool StopRequests::obeyed() const {
  std::error_code none;  // the file is there only if it made the request
  return std::filesystem::remove(stop_file_, none);
}

}  // namespace tessera::train
