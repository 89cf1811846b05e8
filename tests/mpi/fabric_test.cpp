// What is said of the MPI library's way for messages: of texts that libraries give, and of this
// one.
#include "comm/mpi/fabric.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera {
namespace {

using Names = std::vector<std::string>;

TEST(Fabric, IsWhatTheLibrarySays) {
  const std::string open_mpi = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4";
  const Names base = {
      "pml_base_verbose",      "btl_base_include", "mtl_base_verbose", "btl_self_eager",
      "btl_vader_eager_limit", "btl_tcp_links",    "mpi_param_check",  "pml"};
  const auto with = [&](const Names& more) {
    Names all = base;
    all.insert(all.end(), more.begin(), more.end());
    return comm::fabric_of(open_mpi, all).text();
  };
  EXPECT_EQ(with({"pml_ob1_priority", "mtl_psm2_x"}), "Open MPI v4.1.4: ob1 over tcp, vader");
  EXPECT_EQ(with({"pml_ucx_verbose"}), "Open MPI v4.1.4: ucx");
  EXPECT_EQ(with({"pml_cm_priority", "mtl_ofi_priority"}), "Open MPI v4.1.4: cm over ofi");
  EXPECT_EQ(with({}), "Open MPI v4.1.4");
  EXPECT_TRUE(comm::fabric_of(open_mpi, base).is_open_mpi());
  EXPECT_EQ(comm::fabric_of(open_mpi, base).library, "Open MPI v4.1.4");
  EXPECT_EQ(comm::fabric_of(open_mpi, base).way, "");
  const std::string mpich =
      "MPICH Version:      4.0.2\nMPICH Device:\tch4:ofi\nMPICH configure: --prefix=/usr\n";
  EXPECT_EQ(comm::fabric_of(mpich, {}).text(), "MPICH 4.0.2: ch4:ofi");
  EXPECT_EQ(comm::fabric_of(mpich, {}).way, "ch4:ofi");
  EXPECT_FALSE(comm::fabric_of(mpich, {}).is_open_mpi());
  EXPECT_EQ(comm::fabric_of("Another MPI 7\nbuilt: today\n", {}).text(), "Another MPI 7");
}

TEST(Fabric, OfThisLibraryIsKnown) {
  const comm::Fabric first = comm::fabric();
  EXPECT_FALSE(first.library.empty());
  EXPECT_FALSE(first.way.empty()) << first.library;
  EXPECT_EQ(comm::fabric().text(), first.text());
}

}  // namespace
}  // namespace tessera
