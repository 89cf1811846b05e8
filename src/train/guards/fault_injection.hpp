// Does to a run what its deck's [fault] section asks for, so that one can see what detection and
// recovery are worth. Without faults in the deck none of it does anything.
//
// The rank that a fault hits says so itself before it happens, as it may not live to tell rank 0:
// in log.txt and metrics.jsonl by single appends, and first, durably, in faults/rank_NNNNN of the
// run directory, so that the fault does not happen again after a restart.
#pragma once

#include <atomic>
#include <mutex>

#include "io/system_calls.hpp"
#include "train/execution/engine.hpp"
#include "train/report/run_directory.hpp"

namespace tessera::train {

class FaultInjection {
 public:
  /// `directory` is the run's. Every rank makes one while no other writes there. Throws DeckError
  /// for a tensor that the model does not have or of which the fault's rank updates nothing.
  FaultInjection(const deck::LoadedDeck& loaded, int rank, const std::filesystem::path& directory,
                 Engine& engine);
  ~FaultInjection();
  FaultInjection(const FaultInjection&) = delete;
  FaultInjection& operator=(const FaultInjection&) = delete;

  /// Says loudly what is to come, for the start-up block.
  void announce(Reporter& report) const;
  /// Does what is to happen at the begin of `step`; it may not return.
  void begin(std::int64_t step);
  /// Hooks that do what is to happen between the operations of the step that has begun, also when
  /// it is run once more; empty if nothing is.
  Executor::Hooks hooks(const PreparedPlan& prepared);
  /// Does what is to happen to the checkpoint of `step`, which has just been committed.
  void committed(std::int64_t step);

 private:
  struct Tensor {
    std::size_t unit = 0, parameter = 0;
  };
  struct Planned {
    deck::Fault fault;
    Tensor tensor;           // of faults that name one
    bool spent = false;      // it has happened, in this start or before
    std::int64_t step = 0;   // in which it did, if in this start
    std::int64_t calls = 0;  // that matched so far
  };

  Tensor find_tensor(const deck::LoadedDeck& loaded, const deck::Fault& fault) const;
  bool mine(const Planned& planned) const { return planned.fault.rank == rank_; }
  /// Before it happens.
  void tell(Planned& planned);
  void flip_parameter(const Planned& planned);
  io::IoVerdict on_call(IoCall call, const std::filesystem::path& path, std::size_t bytes);

  int rank_;
  std::filesystem::path directory_;
  Engine& engine_;
  std::vector<Planned> planned_;
  std::optional<LineFile> spent_;
  Reporter report_;
  std::atomic<std::int64_t> step_{0};  // under way
  std::mutex mutex_;                   // of calls, which come from many threads
  std::mutex telling_;                 // of spent_; taken last
};

}  // namespace tessera::train
