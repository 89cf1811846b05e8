// Groups over MPI: messages for the collectives of transport_group; library
// collectives for control only.
#pragma once

#include <mpi.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/group.hpp"

namespace tessera::comm {

/// Throws CommError with the call's text and MPI's own message when `code` is not MPI_SUCCESS.
void mpi_check(int code, const char* call);
#define MPI_TRY(call) ::tessera::comm::mpi_check((call), #call)

/// MPI_Init_thread (MPI_THREAD_MULTIPLE: the progress thread and the control path both call MPI)
/// and the world. From its begin on the process dies with its launcher.
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
};

std::string host_name();

/// Ends this process, and with MPI's help the job, without waiting for anybody: for a rank that
/// failed alone.
[[noreturn]] void leave_at_once(int exit_code);

/// How far a clock is ahead of rank 0's, and how wrong that may be; seconds.
struct ClockOffset {
  double ahead = 0, error = 0;
};

/// Small blocking agreements between all ranks, on a communicator of their own. Main thread only.
class Control {
 public:
  Control();
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  void barrier() const;
  std::int64_t max(std::int64_t value) const;
  std::int64_t min(std::int64_t value) const;
  double max(double value) const;
  /// Each becomes the greatest of all ranks'.
  void max(std::span<std::uint64_t> values) const;
  double sum(double value) const;
  /// Throws CommError with this message, on every rank, unless all have the same value.
  void must_agree(std::uint64_t value, const std::string& otherwise) const;
  /// Rank `root`'s text on every rank.
  std::string broadcast(const std::string& text, int root = 0) const;
  /// Every rank's text on rank 0, in rank order; empty elsewhere.
  std::vector<std::string> gather(const std::string& text) const;
  std::vector<double> gather(double value) const;
  /// Of the clock that `now` reads, by the quickest of a few ping-pongs of this rank with rank 0:
  /// its reading belongs to some moment of the round trip, so it is wrong by half of that at most
  /// (Cristian 1989). Later on, what the clocks drift apart comes on top.
  ClockOffset clock_offset(const std::function<double()>& now) const;
  /// Runs `work` on every rank (or only on some: pass what does nothing); if it throws on any rank,
  /// every rank throws the lowest such rank's error, with the same exit code. So all ranks leave
  /// together.
  void together(const std::function<void()>& work) const;

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
};

/// The ranks of `members` (world ranks; this one among them) as a group with a communicator of its
/// own. Every rank of the world must call this in the same order (trap 2), with groups that do not
/// overlap; who has none gives no members and gets nullptr.
std::unique_ptr<Group> make_mpi_group(std::span<const int> members, const GroupShape& shape);

}  // namespace tessera::comm
