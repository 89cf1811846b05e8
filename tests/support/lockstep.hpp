// A whole job in one thread: the ranks' steps are fibers, their streams and messages move one at a
// time, and a seeded generator picks which. The same seed makes the same moves, so an order that
// breaks a plan can be replayed, as FoundationDB's simulation does (Zhou et al. 2021).
#pragma once

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/fiber.hpp"
#include "support/networks.hpp"

namespace tessera::test {

class Lockstep {
 public:
  Lockstep(std::int64_t ranks, comm::Sends sends);
  Lockstep(const Lockstep&) = delete;
  Lockstep& operator=(const Lockstep&) = delete;

  /// The streams and groups that a rank's executor uses; to be called once for each rank. This
  /// object must outlive both.
  train::Groups groups(const plan::PlanInputs& inputs, std::int64_t rank);
  std::unique_ptr<streams::TaskStreams> streams(std::int64_t rank);

  /// A move: something that happens to a rank, to a `stream` of it, or to the `number`-th message
  /// from `rank` to `peer` on a `channel`.
  struct Move {
    enum class What : std::uint8_t { rank_runs, stream_advances, message_leaves, message_arrives };
    What what = What::rank_runs;
    std::int64_t rank = 0;
    Stream stream = Stream::compute;
    Channel channel = Channel::world;
    std::int64_t peer = 0;
    std::int64_t number = 0;
    bool operator==(const Move&) const = default;
  };
  /// Injects a failure: moves for which this is true never happen.
  void prevent(std::function<bool(const Move&)> which) { prevented_ = std::move(which); }

  /// Runs `work` of every rank until all have returned, or nothing more can move. Returns what went
  /// wrong on each rank, empty where nothing did. After a failure no other run is possible.
  std::vector<std::string> run(std::uint64_t seed,
                               const std::function<void(std::int64_t rank)>& work);
  // For `work`, on a rank's fiber: besides its streams, where it gives way to the others.
  /// Returns when `until` is true, which only moves of others can make so.
  void wait(std::function<bool()> until);
  /// May let others move first. Does nothing where no fiber runs, as on another thread. A hook of
  /// io/system_calls that calls it makes ranks use their files in turns.
  void pause();
  /// Calls `work`, in which pause() does nothing: HDF5 serves one rank of a process at a time.
  void undisturbed(const std::function<void()>& work);

  /// What happened in the last run.
  const std::vector<Move>& trace() const { return trace_; }

 private:
  class Rank;
  std::vector<Move> possible();
  std::uint64_t weight(const Move& move) const;
  Move pick(const std::vector<Move>& moves);
  void make(const Move& move);
  std::string deadlock(std::uint64_t seed);

  Fiber scheduler_;  // the thread that calls run()
  std::vector<Rank*> ranks_;
  Networks networks_;
  std::function<bool(const Move&)> prevented_ = [](const Move&) { return false; };
  std::mt19937_64 random_;
  static constexpr std::size_t kKinds = kStreams + kChannels;
  std::vector<std::uint64_t> weights_;  // by rank and kind: a stream, or a channel's messages
  std::vector<Move> trace_;
  Rank* running_ = nullptr;  // whose fiber it is
  std::thread::id thread_;   // of run()
  bool undisturbed_ = false;
};

}  // namespace tessera::test
