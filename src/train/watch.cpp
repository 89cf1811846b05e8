#include "train/watch.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <random>
#include <sstream>

#include "core/regular_file.hpp"
#include "train/run_directory.hpp"

namespace tessera::train {
namespace {

/// Whichever rank reports: appending whole lines needs no lock.
std::function<void(const std::string&)> keep_report(const std::filesystem::path& directory) {
  return [directory](const std::string& report) {
    const auto append = [](const std::filesystem::path& path, const std::string& text) {
      const int file = open_regular(path, O_WRONLY | O_APPEND).descriptor;
      if (file < 0) return;
      [[maybe_unused]] const ssize_t n = ::write(file, text.data(), text.size());
      ::close(file);
    };
    append(directory / "log.txt", report);
    std::istringstream lines(report);
    std::string entries;
    for (std::string line; std::getline(lines, line);) entries += logbook_bullet() + line + "\n";
    append(directory / "logbook.md", entries);
  };
}

}  // namespace

void watch_peers(const Job& job, std::chrono::seconds hang_timeout,
                 const std::filesystem::path& directory) {
  const comm::Control& control = job.control;
  if (control.size() < 2 || hang_timeout.count() == 0 || job.watchdog.watching()) return;
  std::string own;
  control.together([&] { own = job.watchdog.listen(); });
  std::string all;
  for (const std::string& line : control.gather(own)) all += line + "\n";
  std::random_device random;
  const std::uint64_t dice = std::uint64_t{random()} << 32 | random();
  std::istringstream text(control.broadcast(fmt::format("{}\n{}", dice, all)));
  std::string line;
  std::getline(text, line);
  const std::uint64_t secret = std::stoull(line);
  std::vector<std::string> endpoints;
  while (std::getline(text, line)) endpoints.push_back(line);
  control.together([&] {
    job.watchdog.start(endpoints, secret,
                       {.hang_timeout = hang_timeout, .record = keep_report(directory)},
                       [&whereabouts = job.whereabouts] { return whereabouts.look(); });
  });
}

}  // namespace tessera::train
