#include "train/guards/stop.hpp"

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
  struct sigaction before = {};  // nohup has it ignored: the run shall outlive its terminal
  if (sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
    sigaction(SIGHUP, &action, nullptr);
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);  // a reader of stdout that goes away does not end a run
}

StopRequests::StopRequests(const deck::RunSection& run, const std::filesystem::path& directory,
                           bool leads) {
  if (run.time_limit) time_limit_ = run.time_limit->count;
  if (!leads) return;
  deadline_ = run.deadline;
  stop_file_ = directory / kStopFile;
}

std::optional<std::string> StopRequests::reason(double ahead_s) const {
  if (stop_signal != 0) return fmt::format("signal SIG{}", sigabbrev_np(stop_signal));
  const auto elapsed = std::chrono::steady_clock::now() - start_;
  if (time_limit_ && elapsed >= std::chrono::seconds(*time_limit_)) return "run.time_limit";
  if (deadline_ &&
      static_cast<double>(std::time(nullptr)) + ahead_s >= static_cast<double>(*deadline_)) {
    return "run.deadline";
  }
  if (stop_file_there()) return "the file " + stop_file_.string();
  return std::nullopt;
}

bool StopRequests::stop_file_there() const {
  struct stat info {};
  return !stop_file_.empty() && stat(stop_file_.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

bool StopRequests::obeyed() const {
  std::error_code none;  // the file is there only if it made the request
  return stop_file_there() && std::filesystem::remove(stop_file_, none);
}

}  // namespace tessera::train
