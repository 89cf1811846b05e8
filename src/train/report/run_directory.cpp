#include "train/report/run_directory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "core/clock.hpp"
#include "core/regular_file.hpp"
#include "core/terminal.hpp"
#include "io/file.hpp"
#include "io/system_calls.hpp"

namespace tessera::train {
namespace {

constexpr RunFile kRunFiles[] = {
    {"resolved.toml",
     "the deck of the last start with every default filled in; those of starts before it that "
     "differed in more than run.deadline are resolved.1.toml (the first), resolved.2.toml, ..."},
    {"plan.txt", "the operations of a step, as rank 0 executes them"},
    {"log.txt", "what the terminal showed, with the time of each line (UTC)"},
    {"metrics.jsonl", "one JSON object a line: steps, evaluations, checkpoints, restarts"},
    {"profile/", "when each operation of the steps of log.profile ran, a file a rank"},
    {"logbook.md", "what happened to the run, as its team would note it"},
    {"tokenizer.json",
     "what its text was tokenized with, where that is known (tokenizer_config.json: what ends a "
     "document)"},
    {"labels.json", "the names of the classes, where the model classifies documents or words"},
    {"rollouts/", "step_00000100.jsonl: the answers of a step, with rollout.keep_every"},
    {"checkpoints/", "step_00000100/: manifest.json, a file a rank, model.h5 with whole tensors"},
    {"traffic.json", "what zero.* = \"auto\" chose, from which predictions"},
    {"lock", "held by the running job"},
    {"ended", "exit code and reason of an end that a batch job takes for final"},
    {"faults/", "injected faults that have happened, a file a rank"},
    {"starts", "Slurm job and newest checkpoint, a line a start of a batch job"}};

[[noreturn]] void refuse(const std::string& what, const std::filesystem::path& path) {
  const int error = errno;
  const auto message = fmt::format("{} {}: {}", what, path.string(), errno_text(error));
  if (error == ENOMEM) throw MemoryError(message);
  throw IoError(message);
}

int open_own(const std::filesystem::path& path, int flags) {
  const int descriptor = io::system_calls::open(path, flags);
  const std::string problem = descriptor < 0 ? why_not_opened(path, errno)
                                             : why_not_regular(io::system_calls::mode(descriptor));
  if (problem.empty()) return descriptor;
  if (descriptor >= 0) ::close(descriptor);
  throw IoError(fmt::format("cannot open {}: {}", path.string(), problem));
}

void write_all(int fd, std::string_view text, const std::filesystem::path& path) {
  while (!text.empty()) {
    const ssize_t n = io::system_calls::append(fd, path, text.data(), text.size());
    if (n < 0) refuse("cannot write", path);
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

/// Bytes up to and including the last line end before the first zero byte. No line has one: where a
/// system went down before all that was written had come to the disk, zeros are in its place.
std::int64_t complete_bytes(int fd, const std::filesystem::path& path) {
  std::vector<char> buffer(std::size_t{1} << 20);
  std::int64_t at = 0, complete = 0;
  while (true) {
    const ssize_t n = io::system_calls::read(fd, path, buffer.data(), buffer.size(), at);
    if (n < 0) refuse("cannot read", path);
    const std::string_view piece(buffer.data(), static_cast<std::size_t>(n));
    const std::string_view whole = piece.substr(0, piece.find('\0'));
    if (const auto end = whole.rfind('\n'); end != std::string_view::npos)
      complete = at + static_cast<std::int64_t>(end) + 1;
    if (piece.empty() || whole.size() < piece.size()) return complete;
    at += n;
  }
}

}  // namespace

std::span<const RunFile> run_files() { return kRunFiles; }

RunLock::RunLock(const std::filesystem::path& directory, std::chrono::milliseconds patience) {
  io::create_directories(directory);
  path_ = directory / "lock";
  fd_ = open_own(path_, O_RDWR | O_CREAT);
  const auto give_up = std::chrono::steady_clock::now() + patience;
  while (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) refuse("cannot lock", path_);
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
  if (io::system_calls::resize(fd_, path_, 0) != 0) refuse("cannot write", path_);
  write_all(fd_, holder, path_);
}

RunLock::~RunLock() { ::close(fd_); }

void RunLock::check() const {
  struct stat held = {}, there = {};
  if (::stat(path_.c_str(), &there) == 0) {
    if (::fstat(fd_, &held) != 0) refuse("cannot examine", path_);
    if (held.st_dev == there.st_dev && held.st_ino == there.st_ino) return;
  } else if (errno != ENOENT && errno != ENOTDIR) {
    refuse("cannot examine", path_);
  }
  throw IoError(
      fmt::format("the run directory {} is gone: {} was removed or renamed while the run "
                  "was at work",
                  path_.parent_path().string(), path_.string()));
}

void write_ended(const std::filesystem::path& directory, ExitCode code, std::string_view why) {
  std::string line = fmt::format("{} {}", static_cast<int>(code), why);
  std::ranges::replace(line, '\n', ' ');
  io::write_text(directory / "ended", line + "\n");
}

void remove_ended(const std::filesystem::path& directory) {
  io::remove_durably(directory / "ended");
}

LineFile::LineFile(const std::filesystem::path& path) : path_(path.string()) {
  fd_ = open_own(path, O_RDWR | O_CREAT | O_APPEND);
  const off_t size = ::lseek(fd_, 0, SEEK_END);
  if (size <= 0) return;
  const std::int64_t complete = complete_bytes(fd_, path);
  if (complete == size) return;
  if (io::system_calls::resize(fd_, path, complete) != 0)
    refuse("cannot cut the incomplete last line of", path);
  sync();  // or else what was cut could come back between the lines that follow
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
  const io::File file(path, io::OpenMode::read);
  constexpr std::int64_t kTail = 1 << 16;
  const std::int64_t size = file.size(), begin = std::max<std::int64_t>(0, size - kTail);
  std::string tail(static_cast<std::size_t>(size - begin), '\0');
  file.read(begin, std::as_writable_bytes(std::span(tail)));
  std::istringstream in(tail);
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
  if (io::system_calls::sync(fd_, path_) != 0) refuse("cannot sync", path_);
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
  io::sync_directory(directory);  // the names, without which synced lines are nowhere
}

void Reporter::sync() {
  if (!log_) return;
  for (LineFile* file : {log_.get(), metrics_.get(), logbook_.get()}) file->sync();
}

std::string logbook_bullet() { return fmt::format("- {}: ", utc_text()); }

std::string stamped(std::string_view text) {
  const std::string now = utc_text() + ' ';
  std::string all;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    const std::string_view line = text.substr(at, end == text.npos ? end : end + 1 - at);
    all.append(now).append(line);
    at += line.size();
  }
  return all;
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
  const std::string text = printable(line, LineEnds::kept);
  log_->write(stamped(text));
  // A terminal that is gone, closed or full is no failure: the log is what counts.
  const int error = tell_stdout(text + '\n');
  if (error != 0 && terminal_)
    log_->write(
        stamped(fmt::format("note      cannot write stdout: {}; the run goes on, and says so here",
                            errno_text(error))));
  terminal_ = error == 0;
}

void Reporter::event(nlohmann::ordered_json object) {
  if (!metrics_) return;
  using namespace std::chrono;
  const auto now = floor<milliseconds>(system_clock::now().time_since_epoch());
  object["time"] = static_cast<double>(now.count()) / 1e3;
  metrics_->write(object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace tessera::train
