// What main() makes once and every part of a job may use.
#pragma once

#include "comm/mpi/control.hpp"
#include "comm/mpi/session.hpp"
#include "guard/watchdog.hpp"
#include "train/execution/whereabouts.hpp"

namespace tessera::train {

struct Job {
  const comm::MpiSession& mpi;
  const comm::Control& control;
  Whereabouts& whereabouts;
  guard::Watchdog& watchdog;
  double mpi_seconds = 0;  // that it took to start MPI, and what watches the ranks
};

}  // namespace tessera::train
