#include <gtest/gtest.h>

#include <cstdio>
#include <numeric>
#include <thread>

#include "world.hpp"

namespace tessera::test {
namespace {

const comm::MpiSession* the_session = nullptr;
const comm::Control* the_control = nullptr;

class AllRanks : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (!part.failed() || control().rank() == 0) return;  // rank 0 has gtest's own printer
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", control().rank(), part.file_name(),
                 part.line_number(), part.message());
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    const double failed = test.result()->Failed() ? 1 : 0;
    const double total = control().sum(failed);
    if (failed == 0 && total > 0) ADD_FAILURE() << "failed on " << total << " other ranks";
  }
};

}  // namespace

const comm::MpiSession& session() { return *the_session; }
const comm::Control& control() { return *the_control; }

std::vector<int> all_ranks() {
  std::vector<int> ranks(static_cast<std::size_t>(session().size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void finish(streams::Task& task) {
  while (task.advance() != streams::Progress::done) std::this_thread::yield();
}

}  // namespace tessera::test

int main(int argc, char** argv) {
  using namespace tessera;
  testing::InitGoogleTest(&argc, argv);
  GTEST_FLAG_SET(catch_exceptions, false);
  const comm::MpiSession mpi(&argc, &argv);
  const comm::Control control;
  test::the_session = &mpi, test::the_control = &control;
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (mpi.rank() != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new test::AllRanks);  // gtest owns it
  return RUN_ALL_TESTS();
}
