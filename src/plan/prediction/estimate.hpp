// How long a step takes, from plans of few micro-batches that nobody proves: for those who compare
// many layouts and run none. Once all stages of a pipeline are busy, a round of micro-batches, one
// for each stage, takes as long as the one before.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/prediction/simulate.hpp"

namespace tessera::plan {

/// Seconds.
struct Estimate {
  double step = 0;
  double computes = 0;  // that kernels run, on average over the ranks
};

/// A step of few micro-batches: one plan for each of simulated_places.
class FewMicroBatches {
 public:
  /// Makes plans until one needs more than `budget` bytes of a device; 0: any may.
  FewMicroBatches(const PlanInputs& inputs, const PlanShape& shape, std::int64_t micro_batches,
                  const deck::Machine& machine, std::int64_t budget = 0);

  /// What a device needs: the most of the plans that were made.
  std::int64_t device_bytes() const { return device_bytes_; }
  /// Simulates the step; once.
  Estimate play() &&;
  /// That kernels run at the least in a step of `all` micro-batches, no fewer than these: of the
  /// rank where they run longest, and on average. All take what these take, for the first one
  /// overwrites gradients to which later ones add.
  struct Computing {
    double most = 0, mean = 0;
  };
  Computing computing(std::int64_t all) const;

 private:
  std::int64_t micro_batches_;
  std::vector<Plan> plans_;  // without waits
  std::vector<std::vector<OpCost>> costs_;
  std::int64_t device_bytes_ = 0;
};

/// Of all micro-batches, from steps of one round and of two.
Estimate continued(const PlanInputs& inputs, const Estimate& one, const Estimate& two,
                   std::int64_t micro_batches);

/// Seconds of a step, of all its micro-batches where there are no more than two rounds.
double estimate_step(const PlanInputs& inputs, const PlanShape& shape,
                     const deck::Machine& machine);

}  // namespace tessera::plan
