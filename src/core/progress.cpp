#include "core/progress.hpp"

#include <fmt/format.h>

#include <utility>

#include "core/bytes.hpp"
#include "core/terminal.hpp"

namespace tessera {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 500ms, kInterval = 200ms;
constexpr std::string_view kEraseToEnd = "\x1b[K";
// What is wider than the terminal must not go on in the next row: "\r" would not come back from it.
constexpr std::string_view kWrapOff = "\x1b[?7l", kWrapOn = "\x1b[?7h";

}  // namespace

Screen Screen::terminal(int rank) {
  if (rank != 0 || !stderr_is_shown()) return none();
  return {.write = [](std::string_view text) { tell(text); }};
}

ProgressLine::ProgressLine(std::string_view what, Unit unit, Screen screen)
    : what_(printable(what)), unit_(unit), screen_(std::move(screen)) {
  begin_ = screen_.now();
  next_ = begin_ + kPatience;
}

ProgressLine::~ProgressLine() {
  if (drawn_) screen_.write(fmt::format("\r{}", kEraseToEnd));
}

void ProgressLine::at(std::int64_t done, std::int64_t total) {
  if (!screen_.write) return;
  const auto now = screen_.now();
  if (now < next_) return;
  next_ = now + kInterval;
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  screen_.write(
      fmt::format("\r{}{}{}{}", kEraseToEnd, kWrapOff, line(seconds, done, total), kWrapOn));
}

std::string ProgressLine::line(double seconds, std::int64_t done, std::int64_t total) const {
  const auto amount = [&](std::int64_t n) {
    return unit_ == Unit::bytes ? human_bytes(n) : std::to_string(n);
  };
  if (total <= 0) return fmt::format("{}: {}", what_, amount(done));
  const double part = static_cast<double>(done) / static_cast<double>(total);
  std::string text =
      fmt::format("{}: {:.0f} %, {} of {}", what_, 100 * part, amount(done), amount(total));
  if (done > 0 && done < total)
    text += fmt::format(", {} left", duration_text(seconds / part - seconds));
  return text;
}

}  // namespace tessera
