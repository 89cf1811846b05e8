// Another program that answers lines of text with lines of text, as long as it is needed.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

namespace tessera {

/// The program's standard input and output are connected with this object, its messages go where
/// this process's do. It leads a process group of its own, which ends with it: signals that a job's
/// processes get are not for it. Of the environment it has all but what makes a process a rank of
/// an MPI job. Safe to use by one thread.
class Program {
 public:
  /// A name that is looked for in PATH, or a path, and arguments. IoError where it cannot be
  /// started.
  explicit Program(std::vector<std::string> command);
  /// Closes its input, which asks it to end, and kills it where it has not ended soon after.
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// A line for each of `lines`, in their order, all without their line ends. IoError where it
  /// ends before it has answered all, where it writes nothing for `timeout` seconds, or a line
  /// beyond any measure, and where it is seen to have written more than it was asked for.
  std::vector<std::string> ask(std::span<const std::string> lines, double timeout);
  /// For people: "python3 reward.py".
  std::string name() const;

 private:
  class Talk;
  [[noreturn]] void fail(const std::string& what) const;
  /// How it has ended; empty while it runs. What it has started is killed then.
  std::string how_it_ended();
  /// The same, a while later at most.
  std::string wait_for_end();
  [[noreturn]] void fail_as_ended();

  std::vector<std::string> command_;
  pid_t process_ = -1;
  int to_ = -1, from_ = -1;  // ends of pipes
  std::string rest_;         // of what it wrote: the begin of a line
};

}  // namespace tessera
