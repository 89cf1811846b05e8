// The proof of error feedback.
#pragma once

#include <map>
#include <set>

#include "plan/proof/gradient_blocks.hpp"
#include "plan/proof/homes.hpp"

namespace tessera::plan {

/// Follows error feedback: the first rounding of a unit's gradient in a step takes what the step
/// before has left, the others what those before them have lost; and that is left to the next step,
/// once, where this one is applied. Before that it is summed over ranks where a checkpoint is made.
/// `at` is always the op; its errors are InternalErrors.
class ErrorFeedback {
 public:
  ErrorFeedback(const Plan& plan, const Homes& homes) : plan_(plan), homes_(homes), on_way_(plan) {}

  /// `chunk`: of each shard.
  void rounds(std::size_t at, const Op& op, const kernels::Quantize& call, const Range& chunk);
  void keeps(std::size_t at, const Op& op, const kernels::Convert& call, bool verdict);
  /// One hop of the sum, over ranks, of what the step before has left: for checkpoints.
  void sums(std::size_t at, const Op& op, const comm::ReduceScatter& call);
  void end() const;

 private:
  struct Errors {
    BufferUse error, lost;        // of the whole gradient
    int roundings = 0, with = 0;  // of chunks
    int wholes = 0;               // roundings of all chunks
    std::int64_t next = 0;        // element of a shard that the next chunk begins with
    bool kept = false;
  };
  void sets_out(std::size_t at, const Op& op, const kernels::Convert& call);
  BufferUse whole_of(std::size_t at, const Op& op, const View& v, const Range& chunk) const;

  const Plan& plan_;
  const Homes& homes_;
  std::map<std::int32_t, Errors> of_;        // by unit
  std::set<BufferId> taken_;                 // whose errors these are
  GradientBlocks on_way_;                    // to the sums of units
  std::map<BufferId, std::int32_t> to_sum_;  // copies that no hop has taken yet, by unit
  std::set<std::int32_t> summed_;            // units
};

}  // namespace tessera::plan
