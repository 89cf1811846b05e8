// How far something has come that takes long: a line on the terminal that is drawn over itself.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/clock.hpp"

namespace tessera {

/// Where progress is drawn.
struct Screen {
  std::function<void(std::string_view)> write;  // empty: nowhere
  std::function<SteadyClock::time_point()> now = SteadyClock::now;

  /// stderr where it is shown on a terminal, else nowhere. Of ranks that do the same at once, rank
  /// 0 draws for all.
  static Screen terminal(int rank = 0);
  static Screen none() { return {}; }
};

/// The first line comes after half a second, so that what is quick draws nothing; later ones at
/// most five times a second, however often at() is called. For one thread.
class ProgressLine {
 public:
  enum class Unit : std::uint8_t { bytes, things };

  /// `what` is being done, in a few words.
  ProgressLine(std::string_view what, Unit unit, Screen screen = Screen::terminal());
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  /// Takes the line away.
  ~ProgressLine();

  /// `total`: 0 where it is not known.
  void at(std::int64_t done, std::int64_t total);

 private:
  std::string line(double seconds, std::int64_t done, std::int64_t total) const;

  std::string what_;
  Unit unit_;
  Screen screen_;
  SteadyClock::time_point begin_, next_;
  bool drawn_ = false;
};

}  // namespace tessera
