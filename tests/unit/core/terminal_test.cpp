#include "core/terminal.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "core/error.hpp"

namespace tessera {
namespace {

TEST(Printable, LeavesTextAsItIs) {
  for (const std::string_view text : {"", "runs/a b/c\\d.toml", "größe 漢字 \U0001F600 ~"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, EscapesWhatSteersATerminalOrForgesALine) {
  EXPECT_EQ(printable("a\nb\r\tc"), "a\\nb\\r\\tc");
  EXPECT_EQ(printable("\x1b[31mred\x07\x7f"), "\\x1b[31mred\\x07\\x7f");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\xc2\\x9b2J")
      << "U+009B begins a command too";
  EXPECT_EQ(printable("\xc2\xa0"), "\xc2\xa0") << "a space that breaks no line";
}

TEST(Printable, EscapesWhatChangesTheOrderOfText) {
  EXPECT_EQ(printable("a\u202Etxt.exe"), "a\\xe2\\x80\\xaetxt.exe");
  for (const std::string_view one : {"\u061C", "\u200E", "\u200F", "\u2028", "\u2029", "\u202A",
                                     "\u202D", "\u2066", "\u2067", "\u2068", "\u2069"})
    EXPECT_TRUE(printable(one).starts_with("\\x")) << printable(one);
  for (const std::string_view near : {"\u200D", "\u2010", "\u2027", "\u202F", "\u2065", "\u206A"})
    EXPECT_EQ(printable(near), near);
}

TEST(Printable, EscapesBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("\x9b"
                      "2J \xff \xc3"),
            "\\x9b2J \\xff \\xc3");
  EXPECT_EQ(printable("\xe6\xbc"
                      "a\xc0\x8a"),
            "\\xe6\\xbca\\xc0\\x8a")
      << "cut, and longer than need be";
}

TEST(Printable, KeepsLineEndsThatAreMeant) {
  EXPECT_EQ(printable("a\n\x1b\n", LineEnds::kept), "a\n\\x1b\n");
}

TEST(Printable, ChangesNothingTheSecondTime) {
  const std::string once = printable("\x1b\n\xff\\");
  EXPECT_EQ(printable(once), once);
}

TEST(ShellWord, IsQuotedWhereAShellWouldReadMore) {
  EXPECT_EQ(shell_word("/runs/a-b_1.0/stop"), "/runs/a-b_1.0/stop");
  EXPECT_EQ(shell_word("/my runs/stop"), "'/my runs/stop'");
  EXPECT_EQ(shell_word("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(Error, ShowsWhatItQuotesEscaped) {
  DataError error(fmt::format("{}: damaged", "a\n\x1b[2J.h5"));
  EXPECT_STREQ(error.what(), "a\\n\\x1b[2J.h5: damaged");
  error.add_context("while reading\n");
  EXPECT_STREQ(error.what(), "while reading\\n: a\\n\\x1b[2J.h5: damaged");
}

TEST(Error, KeepsTheLinesOfAList) {
  EXPECT_STREQ(DeckError(Lines{"a: wrong\nb: wrong"}).what(), "a: wrong\nb: wrong");
}

/// Has stderr lead elsewhere while it lives.
class StderrTo {
 public:
  explicit StderrTo(int descriptor) : before_(::dup(STDERR_FILENO)) {
    ::dup2(descriptor, STDERR_FILENO);
  }
  ~StderrTo() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
  }

 private:
  int before_;
};

TEST(StderrIsShown, OnTerminalsAlone) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(master, 0);
  ASSERT_EQ(::grantpt(master) + ::unlockpt(master), 0);
  const int terminal = ::open(::ptsname(master), O_RDWR | O_NOCTTY);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int file = ::open("/dev/null", O_WRONLY);
  const auto shown_on = [](int descriptor) {
    const StderrTo to(descriptor);
    return stderr_is_shown();
  };
  EXPECT_TRUE(shown_on(terminal));
  EXPECT_FALSE(shown_on(ends[1])) << "a pipe of no launcher";
  EXPECT_FALSE(shown_on(file));
  for (const int descriptor : {master, terminal, ends[0], ends[1], file}) ::close(descriptor);
}

}  // namespace
}  // namespace tessera
