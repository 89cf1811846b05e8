// The ranks that an MPI test runs on. The verdict on each test is summed over them: one that fails
// on any rank fails on all, and rank 0 alone prints what passed. Between collectives tests EXPECT
// and never ASSERT, so that a rank that fails does not leave the others waiting; an exception ends
// the whole job at once.
#pragma once

#include <vector>

#include "comm/mpi/control.hpp"
#include "comm/mpi/mpi_group.hpp"
#include "comm/mpi/session.hpp"

namespace tessera::test {

const comm::MpiSession& session();
const comm::Control& control();

/// 0, 1, ..., size - 1.
std::vector<int> all_ranks();

/// Advances a collective to its end.
void finish(streams::Task& task);

}  // namespace tessera::test
