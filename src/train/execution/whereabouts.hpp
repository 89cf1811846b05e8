// What this rank is doing, for the report that is written when a rank dies or hangs. Written by the
// thread that works, read by the watchdog's.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "guard/watchdog.hpp"
#include "plan/passes/make_plan.hpp"

namespace tessera::train {

class Whereabouts {
 public:
  /// What the rank does from now on, in words that outlive it: "starting", "training", "saving".
  /// `step`: the one under way, 0 for none.
  void begin(const char* phase, std::int64_t step);

  /// Marks each op of a plan as it begins. While an object of this class lives, ops must keep
  /// coming, or the watchdog takes the rank for stuck.
  class Running {
   public:
    Running(Whereabouts& of, const plan::PlanInputs& inputs);
    ~Running();
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
    void at(const plan::Op& op, std::int32_t micro_batch) {
      of_.micro_batch_.store(micro_batch, std::memory_order_relaxed);
      of_.op_.store(&op, std::memory_order_relaxed);
      of_.done_.fetch_add(1, std::memory_order_relaxed);
    }

   private:
    Whereabouts& of_;
  };

  guard::Activity activity() const;

 private:
  mutable std::mutex mutex_;  // what `op_` and `inputs_` point to stays while it is held
  std::atomic<const char*> phase_{"starting"};
  std::atomic<std::int64_t> step_{0};
  std::atomic<const plan::Op*> op_{nullptr};
  std::atomic<std::int32_t> micro_batch_{-1};  // which it is about
  std::atomic<std::uint64_t> done_{0};
  const plan::PlanInputs* inputs_ = nullptr;  // while a plan runs
};

}  // namespace tessera::train
