// Programs that answer lines: all of them, however many, and what becomes of those that do not.
#include "core/program.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "core/error.hpp"

namespace tessera {
namespace {

std::string failure_of(std::vector<std::string> command, std::vector<std::string> lines,
                       double timeout = 20) {
  try {
    Program program(std::move(command));
    program.ask(lines, timeout);
  } catch (const IoError& e) {
    return e.what();
  }
  return "nothing";
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Program, AnswersEachLineInOrder) {
  Program program({"sed", "-u", "s/^/</;s/$/>/"});
  for (int round = 0; round < 3; ++round) {
    std::vector<std::string> lines{"a", "", std::string(200'000, 'x'), "\xff\x01"};
    lines.resize(2000, "many, so that both sides are full of what nobody has read yet, unless");
    const auto answers = program.ask(lines, 20);
    ASSERT_EQ(answers.size(), lines.size());
    for (std::size_t i = 0; i < lines.size(); ++i) ASSERT_EQ(answers[i], "<" + lines[i] + ">");
  }
  EXPECT_TRUE(program.ask({}, 20).empty());
  EXPECT_EQ(program.name(), "sed -u s/^/</;s/$/>/");
}

TEST(Program, PythonDoesNotKeepLinesBack) {
  Program program({"python3", "-c", "import sys\nfor line in sys.stdin: print(len(line))"});
  const std::vector<std::string> lines{"four", "", "7654321"};
  EXPECT_EQ(program.ask(lines, 20), (std::vector<std::string>{"5", "1", "8"}));
}

TEST(Program, SaysHowItFailed) {
  expect_has(failure_of({"/nowhere/at/all"}, {"a"}), "/nowhere/at/all: No such file");
  expect_has(failure_of({"sh", "-c", "exit 7"}, {"a"}), "exit 7: it has ended, with exit code 7");
  expect_has(failure_of({"sh", "-c", "read line; echo $line; kill -9 $$"}, {"a", "b"}),
             "signal 9 has ended it");
  expect_has(failure_of({"sh", "-c", "read line; echo $line; exec sleep 60"}, {"a", "b"}, 0.2),
             "has written nothing for 0.2 s, after 1 of 2 lines");
  // What it writes beyond that is there when it is asked again, at the latest.
  Program talkative({"sh", "-c", "while read line; do printf '1\\n2\\n'; done"});
  EXPECT_THROW(
      {
        for (int i = 0; i < 2; ++i) talkative.ask(std::vector<std::string>{"a"}, 20);
      },
      IoError);
  expect_has(failure_of({"sh", "-c", "exec cat /dev/zero"}, {"a"}), "a line of more than");
  expect_has(failure_of({"sh", "-c", "exec >&-; sleep 60"}, {"a"}), "it has closed its input or");
  // Though what it has started still has its output.
  expect_has(failure_of({"sh", "-c", "sleep 60 & exit 5"}, {"a"}, 0.5),
             "it has ended, with exit code 5");
}

/// Whether a process is there and has not ended; one that nobody has waited for has.
bool runs(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name = text.rfind(')');
  return name != std::string::npos && text.at(name + 2) != 'Z';
}

// Neither a program that does not end when its input does, nor what one has started that does.
TEST(Program, LeavesNothingBehind) {
  for (const char* then : {"wait", "read line"}) {
    std::string child;
    {
      Program program({"sh", "-c", fmt::format("sleep 600 & read line; echo $!; {}", then)});
      child = program.ask(std::vector<std::string>{"a"}, 20).at(0);
      EXPECT_TRUE(runs(child));
    }
    for (int i = 0; i < 1000 && runs(child); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_FALSE(runs(child)) << then;
  }
}

// A job's requests to stop are for its ranks, which end what they have begun.
TEST(Program, HearsNoRequestsToStop) {
  Program program({"sh", "-c", "kill -TERM $$; while read line; do echo ${OMPI_RANK:-none}; done"});
  ::setenv("OMPI_RANK", "7", 1);
  EXPECT_EQ(program.ask(std::vector<std::string>{"a"}, 20).at(0), "none");
  Program other({"sh", "-c", "while read line; do echo ${OMPI_RANK:-none}; done"});
  EXPECT_EQ(other.ask(std::vector<std::string>{"a"}, 20).at(0), "none");
  ::unsetenv("OMPI_RANK");
}

}  // namespace
}  // namespace tessera
