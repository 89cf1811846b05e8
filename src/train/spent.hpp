// Time that a rank has spent on something, and how much of it waiting for other ranks.
#pragma once

#include "comm/mpi/control.hpp"
#include "core/clock.hpp"

namespace tessera::train {

struct Spent {
  double seconds = 0;
  double waiting = 0;  // of these, in agreements of all ranks (comm::Control)

  Spent& operator+=(const Spent& other) {
    seconds += other.seconds;
    waiting += other.waiting;
    return *this;
  }
  Spent operator-(const Spent& other) const {
    return {seconds - other.seconds, waiting - other.waiting};
  }
};

class Stopwatch {
 public:
  explicit Stopwatch(const comm::Control& control) : control_(control) { restart(); }
  Spent read() const { return {seconds_since(begin_), control_.waited() - waited_before_}; }
  /// What it showed.
  Spent restart() {
    const Spent shown = read();
    begin_ = SteadyClock::now();
    waited_before_ = control_.waited();
    return shown;
  }

 private:
  const comm::Control& control_;
  SteadyClock::time_point begin_ = SteadyClock::now();
  double waited_before_ = 0;
};

}  // namespace tessera::train
