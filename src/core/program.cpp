#include "core/program.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <string_view>
#include <thread>

#include "core/error.hpp"

namespace tessera {
namespace {

constexpr std::size_t kLongestLine = 1 << 20;

/// What posix_spawn is told, freed again.
struct SpawnRules {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;

  SpawnRules(int input, int output) {
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
    posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
    sigset_t requests, all;
    sigemptyset(&requests);
    for (const int request : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2})
      sigaddset(&requests, request);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &requests);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnRules() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnRules(const SpawnRules&) = delete;
  SpawnRules& operator=(const SpawnRules&) = delete;
};

/// The environment of a program that is no rank, and in which Python does not keep lines back.
std::vector<char*> own_environment(std::string& unbuffered) {
  constexpr std::array<std::string_view, 6> kOthers = {
      "PYTHONUNBUFFERED=", "OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_LOCAL"};
  std::vector<char*> all{unbuffered.data()};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (std::ranges::none_of(kOthers, [&](auto other) { return text.starts_with(other); }))
      all.push_back(*entry);
  }
  all.push_back(nullptr);
  return all;
}

/// write(2) to a pipe that may have lost its reader: EPIPE, and no signal.
ssize_t write_without_signal(int fd, const char* bytes, std::size_t count) {
  sigset_t pipe, before;
  sigemptyset(&pipe), sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  const ssize_t n = ::write(fd, bytes, count);
  const int error = errno;
  constexpr timespec kNow{};
  if (n < 0 && error == EPIPE) sigtimedwait(&pipe, nullptr, &kNow);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return n;
}

void close_all(std::initializer_list<int> descriptors) {
  for (const int fd : descriptors)
    if (fd >= 0) ::close(fd);
}

}  // namespace

Program::Program(std::vector<std::string> command) : command_(std::move(command)) {
  std::array<int, 2> in{-1, -1}, out{-1, -1};
  if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0) {
    const int error = errno;
    close_all({in[0], in[1]});
    fail(errno_text(error));
  }
  std::vector<char*> arguments;
  for (std::string& word : command_) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::string unbuffered = "PYTHONUNBUFFERED=1";
  const std::vector<char*> environment = own_environment(unbuffered);
  const SpawnRules rules(in[0], out[1]);
  const int error = ::posix_spawnp(&process_, arguments[0], &rules.files, &rules.attributes,
                                   arguments.data(), environment.data());
  close_all({in[0], out[1]});
  if (error != 0) {
    close_all({in[1], out[0]});
    process_ = -1;
    fail(errno_text(error));
  }
  to_ = in[1], from_ = out[0];
  for (const int fd : {to_, from_}) ::fcntl(fd, F_SETFL, O_NONBLOCK);
}

std::string Program::name() const { return fmt::format("{}", fmt::join(command_, " ")); }

void Program::fail(const std::string& what) const {
  throw IoError(fmt::format("the program {}: {}", name(), what));
}

std::string Program::how_it_ended() {
  siginfo_t info{};
  if (process_ < 0) return "it has ended";
  if (::waitid(P_PID, static_cast<id_t>(process_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0)
    return "";
  ::kill(-process_, SIGKILL);  // what it has started
  ::waitpid(process_, nullptr, 0);
  process_ = -1;
  return info.si_code == CLD_EXITED ? fmt::format("it has ended, with exit code {}", info.si_status)
                                    : fmt::format("signal {} has ended it", info.si_status);
}

Program::~Program() {
  close_all({to_, from_});
  if (!wait_for_end().empty()) return;
  ::kill(-process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
}

std::string Program::wait_for_end() {
  std::string how;
  for (int i = 0; i < 100 && (how = how_it_ended()).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return how;
}

void Program::fail_as_ended() {
  if (const std::string how = wait_for_end(); !how.empty()) fail(how);
  fail("it has closed its input or output");
}

/// Lines that go out while others come in, so that neither side waits for the other.
class Program::Talk {
 public:
  Talk(Program& program, std::span<const std::string> lines)
      : program_(program), wanted_(lines.size()) {
    for (const std::string& line : lines) out_ += line + "\n";
  }

  std::vector<std::string> run(double timeout) {
    receive();  // what it wrote unasked
    while (answers_.size() < wanted_ || sent_ < out_.size()) {
      std::array<pollfd, 2> ends{
          pollfd{.fd = program_.from_, .events = POLLIN, .revents = 0},
          pollfd{.fd = sent_ < out_.size() ? program_.to_ : -1, .events = POLLOUT, .revents = 0}};
      const double ms = std::clamp(std::ceil(timeout * 1e3), 1.0, 2e9);
      const int ready = ::poll(ends.data(), ends.size(), static_cast<int>(ms));
      if (ready < 0 && errno == EINTR) continue;
      if (ready < 0) program_.fail(errno_text(errno));
      if (ready == 0) fail_as_silent(timeout);
      if (ends[1].revents != 0) send();
      if (ends[0].revents != 0) receive();
    }
    if (!program_.rest_.empty()) fail_as_talkative();
    return std::move(answers_);
  }

 private:
  [[noreturn]] void fail_as_silent(double timeout) {
    if (const std::string how = program_.how_it_ended(); !how.empty()) program_.fail(how);
    program_.fail(
        fmt::format("it has written nothing for {} s, after {} of {} lines (does it write out each "
                    "line at once?)",
                    timeout, answers_.size(), wanted_));
  }
  [[noreturn]] void fail_as_talkative() {
    program_.fail(
        "it has written more lines than it was asked for, so that it is not known which "
        "one answers what");
  }

  void send() {
    const ssize_t n = write_without_signal(program_.to_, out_.data() + sent_, out_.size() - sent_);
    if (n >= 0) {
      const std::string_view now(out_.data() + sent_, static_cast<std::size_t>(n));
      lines_sent_ += static_cast<std::size_t>(std::ranges::count(now, '\n'));
      sent_ += now.size();
    } else if (errno == EPIPE) {
      program_.fail_as_ended();
    } else if (errno != EAGAIN && errno != EINTR) {
      program_.fail(errno_text(errno));
    }
  }

  void receive() {
    std::array<char, 1 << 16> bytes;
    const ssize_t n = ::read(program_.from_, bytes.data(), bytes.size());
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) program_.fail_as_ended();
    std::string& rest = program_.rest_;
    rest.append(bytes.data(), static_cast<std::size_t>(n));
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1)
      answers_.push_back(rest.substr(begin, end - begin));
    rest.erase(0, begin);
    if (answers_.size() > lines_sent_) fail_as_talkative();
    if (rest.size() > kLongestLine)
      program_.fail(fmt::format("it writes a line of more than {} bytes", kLongestLine));
  }

  Program& program_;
  std::size_t wanted_, sent_ = 0, lines_sent_ = 0;
  std::string out_;
  std::vector<std::string> answers_;
};

std::vector<std::string> Program::ask(std::span<const std::string> lines, double timeout) {
  if (lines.empty()) return {};
  return Talk(*this, lines).run(timeout);
}

}  // namespace tessera
