#include "train/run_directory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <fmt/chrono.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <thread>

#include "io/file.hpp"

namespace tessera::train {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::filesystem::path& path) {
  const int error = errno;
  const auto message = fmt::format("{} {}: {}", what, path.string(), errno_text(error));
  if (error == ENOMEM) throw MemoryError(message);
  throw IoError(message);
}

void write_all(int fd, std::string_view text, const std::filesystem::path& path) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refuse("cannot write", path);
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

/// Bytes up to and including the last line end.
off_t complete_bytes(int fd, off_t size, const std::filesystem::path& path) {
  char buffer[4096];
  while (size > 0) {
    const off_t begin = std::max<off_t>(0, size - static_cast<off_t>(sizeof buffer));
    const ssize_t n = pread(fd, buffer, static_cast<std::size_t>(size - begin), begin);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refuse("cannot read", path);
    if (n == 0) return 0;
    const auto at = std::string_view(buffer, static_cast<std::size_t>(n)).rfind('\n');
    if (at != std::string_view::npos) return begin + static_cast<off_t>(at) + 1;
    size = begin;
  }
  return 0;
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& directory, std::chrono::milliseconds patience) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error)
    throw IoError(
        fmt::format("cannot create run directory {}: {}", directory.string(), error.message()));
  const auto path = directory / "lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) refuse("cannot open", path);
  const auto give_up = std::chrono::steady_clock::now() + patience;
  while (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) refuse("cannot lock", path);
    if (std::chrono::steady_clock::now() > give_up) {
      char holder[256] = "";
      const ssize_t n = pread(fd_, holder, sizeof holder - 1, 0);
      ::close(fd_);
      throw DeckError(
          fmt::format("run directory {} is in use by {}: wait for that job or set another run.dir",
                      directory.string(), n > 0 ? holder : "another job"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  char host[128] = "?";
  gethostname(host, sizeof host - 1);
  const char* job = std::getenv("SLURM_JOB_ID");
  const std::string holder = fmt::format("process {} on {}{}", getpid(), host,
                                         job != nullptr ? fmt::format(", Slurm job {}", job) : "");
  if (ftruncate(fd_, 0) != 0) refuse("cannot write", path);
  write_all(fd_, holder, path);
}

RunLock::~RunLock() { ::close(fd_); }

void write_ended(const std::filesystem::path& directory, ExitCode code, std::string_view why) {
  std::string line = fmt::format("{} {}", static_cast<int>(code), why);
  std::ranges::replace(line, '\n', ' ');
  AtomicFile file(directory / "ended");
  file.append(line + "\n");
  file.publish();
}

void remove_ended(const std::filesystem::path& directory) { remove_tree(directory / "ended"); }

LineFile::LineFile(const std::filesystem::path& path) : path_(path.string()) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) refuse("cannot open", path);
  const off_t size = lseek(fd_, 0, SEEK_END);
  const off_t complete = complete_bytes(fd_, size, path);
  if (complete < size && ftruncate(fd_, complete) != 0)
    refuse("cannot cut the incomplete last line of", path);
}

LineFile::~LineFile() { ::close(fd_); }

void LineFile::write(std::string_view line) {
  std::string whole(line);
  whole += '\n';
  write_all(fd_, whole, path_);
}

namespace {

/// Of the last event "step" among a file's last lines; 0 if there is none.
std::int64_t last_step_in(const std::filesystem::path& path) {
  std::ifstream in(path);
  in.seekg(0, std::ios::end);
  constexpr std::streamoff kTail = 1 << 16;
  in.seekg(std::max<std::streamoff>(0, in.tellg() - kTail));
  std::int64_t step = 0;
  for (std::string line; std::getline(in, line);) {
    const auto event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!event.is_object() || event.value("event", nlohmann::json()) != "step") continue;
    const auto at = event.value("step", nlohmann::json());
    if (at.is_number_integer()) step = at.get<std::int64_t>();
  }
  return step;
}

}  // namespace

void LineFile::sync() {
  if (::fsync(fd_) != 0) refuse("cannot sync", path_);
}

Reporter::Reporter(const std::filesystem::path& directory)
    : log_(std::make_unique<LineFile>(directory / "log.txt")),
      metrics_(std::make_unique<LineFile>(directory / "metrics.jsonl")) {
  const auto path = directory / "logbook.md";
  last_step_ = last_step_in(directory / "metrics.jsonl");
  const bool fresh = !std::filesystem::exists(path);
  logbook_ = std::make_unique<LineFile>(path);
  if (fresh) {
    logbook_->write("# Logbook\n\nWhat happened to this run, by its own account; times are UTC.\n");
  }
}

std::string logbook_bullet() {
  return fmt::format("- {:%Y-%m-%d %H:%M:%S}Z: ", fmt::gmtime(std::time(nullptr)));
}

void Reporter::note(std::string_view sentence) {
  if (logbook_) logbook_->write(logbook_bullet().append(sentence));
}

void Reporter::record(std::string_view sentence, const nlohmann::ordered_json& object) {
  say(sentence);
  event(object);
  note(sentence);
}

void Reporter::say(std::string_view line) {
  if (!log_) return;
  log_->write(line);
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

void Reporter::event(const nlohmann::ordered_json& object) {
  if (metrics_)
    metrics_->write(object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace tessera::train
