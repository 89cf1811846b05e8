// The job as MPI knows it: its start and end, its ranks and their nodes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "comm/group.hpp"

namespace tessera::comm {

/// MPI's start and end. MPI_THREAD_MULTIPLE, because the progress thread and the main thread both
/// call MPI. From the begin on, the process dies with its launcher.
class MpiSession {
 public:
  MpiSession(int* argc, char*** argv);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(job_.size); }
  /// All ranks, with nodes as MPI finds them (MPI_COMM_TYPE_SHARED).
  const GroupShape& job() const { return job_; }
  /// The node of each rank: the lowest rank on it.
  const std::vector<int>& node_of() const { return node_of_; }
  /// Cores for each rank (cores_each), on the node where they are fewest: the same on every rank.
  int cores() const { return cores_; }

 private:
  int rank_ = 0, cores_ = 1;
  GroupShape job_;
  std::vector<int> node_of_;
  std::vector<std::filesystem::path> library_threads_;  // of MPI
};

/// This rank among those of the job.
struct WorldPlace {
  int rank = 0, size = 1;
};
WorldPlace place_in_world();

/// Every rank's `own`, which is equally long everywhere, one after the other by rank. Collective.
void gather_in_world(std::span<const std::byte> own, std::span<std::byte> all);

std::string host_name();

/// Ends this process at once and, through MPI, the job: for a rank that failed alone.
[[noreturn]] void leave_at_once(int exit_code);

}  // namespace tessera::comm
