// Small blocking agreements between all ranks of a job, beside the collectives of steps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera::comm {

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
  /// Each becomes the sum of all ranks'.
  void sum(std::span<double> values) const;
  /// Of values that are 0 on all ranks but one each: that one's, to the bit, on every rank.
  void unite(std::span<float> values) const;
  /// Throws CommError with this message, on every rank, unless all have the same value.
  void must_agree(std::uint64_t value, const std::string& otherwise) const;
  /// Rank `root`'s text on every rank.
  std::string broadcast(const std::string& text, int root = 0) const;
  /// Every rank's text on rank 0, in rank order; empty elsewhere.
  std::vector<std::string> gather(const std::string& text) const;
  std::vector<double> gather(double value) const;
  /// The offset of the clock that `now` reads, from the quickest of a few ping-pongs of this rank
  /// with rank 0. Its reading belongs to some moment of the round trip, so it is wrong by half of
  /// that at most (Cristian 1989). Drift adds to the error later on.
  ClockOffset clock_offset(const std::function<double()>& now) const;
  /// Runs `work` on every rank (on some only, if the others pass a function that does nothing). If
  /// it throws on any rank, every rank throws the error of the lowest such rank as an AgreedError,
  /// with its exit code. So all ranks leave together.
  void together(const std::function<void()>& work) const;

  /// Seconds that this rank has spent in all of these, which is mostly waiting for other ranks.
  double waited() const;

 private:
  class Waiting;
  struct Communicator;
  std::unique_ptr<Communicator> communicator_;
  int rank_ = 0, size_ = 1;
};

}  // namespace tessera::comm
