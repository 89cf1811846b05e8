// Finds where a NaN or an infinity came from: a step that failed is run again, and each op's
// results are examined.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "train/execution/executor.hpp"

namespace tessera::train {

class NonFiniteFinder {
 public:
  /// `tier` is where the plan's buffers are.
  NonFiniteFinder(const plan::Plan& plan, const plan::PlanInputs& inputs, memory::Tier& tier);

  /// Looks at everything that each op of the compute stream writes, and at gradients before and
  /// after they are summed over ranks, until something is not finite. Of rows of copies of tokens
  /// only those that experts have made are looked at: what lies behind them is anything. This
  /// object must outlive their calls.
  Executor::Hooks hooks();

  /// The first such run in the plan's order, and its tensor; nothing if all was finite.
  struct Found {
    std::int64_t run = 0;
    std::string tensor;  // "gradient of block.0.attention.q.weight", or a buffer of the plan
  };
  const std::optional<Found>& found() const { return found_; }

 private:
  /// What to look at of a call of an op.
  using Looks = std::vector<View> (*)(const plan::Op& op, const plan::Call& call);
  bool of_a_node(const plan::Op& op, const View& symbolic) const;
  /// What is defined of a view that an op has written.
  View defined(const plan::Call& real, const View& symbolic, const View& written) const;
  bool found_before(std::int64_t run) const;
  void note(Found found);
  void examine(const BoundPlan::BoundOp& op, const plan::OpRun& run, Looks looks);

  const plan::Plan& plan_;
  const plan::PlanInputs& inputs_;
  memory::Tier& tier_;
  std::vector<bool> partly_;  // by buffer: whether only some of its rows are defined
  mutable std::mutex mutex_;  // of found_: ops of other streams are looked at by their thread
  std::optional<Found> found_;
};

}  // namespace tessera::train
