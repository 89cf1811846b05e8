// Runs the tests of one binary on all ranks of an MPI job. The verdict on each test is summed over
// the ranks: one that fails on any rank fails on all, and rank 0 alone prints what passed.
#include <gtest/gtest.h>

#include <cstdio>

#include "comm/mpi/mpi_group.hpp"

namespace {

class AllRanks : public testing::EmptyTestEventListener {
 public:
  explicit AllRanks(const tessera::comm::Control& control) : control_(control) {}
  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (!part.failed() || control_.rank() == 0) return;  // rank 0 has gtest's own printer
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", control_.rank(), part.file_name(),
                 part.line_number(), part.message());
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    const double failed = test.result()->Failed() ? 1 : 0;
    const double total = control_.sum(failed);
    if (failed == 0 && total > 0) ADD_FAILURE() << "failed on " << total << " other ranks";
  }

 private:
  const tessera::comm::Control& control_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const tessera::comm::MpiSession mpi(&argc, &argv);
  const tessera::comm::Control control;
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (mpi.rank() != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new AllRanks(control));  // gtest owns it
  return RUN_ALL_TESTS();
}
