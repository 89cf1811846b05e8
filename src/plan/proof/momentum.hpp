// The proof of momentum that travels compressed.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "plan/proof/homes.hpp"

namespace tessera::plan {

/// Follows momentum that travels in place of gradients. A unit's gradient joins the momentum that
/// the step before has left, on each rank, before it leaves. Sums of nodes, and the mean of
/// what arrives, are rounded with what the step before has lost, and that goes to all ranks; what
/// this rank decodes of its own part leads back to a gradient, for the norm. Where the step is
/// applied the whole becomes the state's momentum, once, and what the rounding has lost is left to
/// the next step; so does the momentum of units that stay as they are, by their summed gradients.
/// `at` is always the op; its errors are InternalErrors.
class MomentumCheck {
 public:
  MomentumCheck(const Plan& plan, const Homes& homes) : plan_(plan), homes_(homes) {}

  /// What a Blend does.
  enum class Blends : std::uint8_t { joins, leads_back, keeps };
  Blends blends(std::size_t at, const Op& op, const kernels::Blend& call, bool verdict);
  /// A gather of momentum, or of blocks of its mean; or a sum of errors for checkpoints.
  void collective(std::size_t at, const Op& op, const comm::CollectiveCall& call);
  /// Sums of nodes, which are rounded with what the step before has lost.
  void adds(std::size_t at, const Op& op, const kernels::RequantizeSum& call);
  void rounds(std::size_t at, const Op& op, const kernels::Quantize& call);
  void decodes(std::size_t at, const Op& op, const kernels::SumQuantized& call);
  void keeps_error(std::size_t at, const Op& op, const kernels::Convert& call, bool verdict);
  /// What leaves is this gradient: it must have joined momentum, if any does.
  void leaves(std::size_t at, const Op& op, BufferId gradient, const kernels::Quantize& call);
  /// Padding within a block, or the table of the largest ratios.
  void clears(std::size_t at, const Op& op, const kernels::Fill& call);
  /// Of factors of tensors: second moments that go on, from those that updates are by, by the
  /// step's gradients; and factors that follow the largest of what has become of them, over all
  /// ranks.
  void copies_moments(std::size_t at, const Op& op, const kernels::Convert& call);
  void moves_moments(std::size_t at, const Op& op, const kernels::MomentRatio& call, bool verdict);
  void follows(std::size_t at, const Op& op, const kernels::FollowRatio& call, bool verdict);
  /// An update by momentum; `deferred`: by what the step before has left.
  void updates(std::size_t at, const Op& op, const kernels::OptimizerUpdate& update, bool deferred);
  /// The gradient that a unit's mean has led back to; -1: none.
  BufferId gradient(std::int32_t unit) const;
  /// `whole`: whether this rank updates all of the unit.
  void end(std::int32_t unit, bool whole) const;

 private:
  enum class Stage : std::uint8_t { none, joined, rounded, decoded, led_back, arrived };
  struct Unit {
    Stage stage = Stage::none;
    BufferUse momentum, error, lost;
    BufferUse node_error, node_lost;    // of sums of nodes
    std::int64_t of_nodes = 0;          // elements of these that were rounded
    BufferId node_errors_leaving = -1;  // those of the step before, for a checkpoint
    BufferId gradient = -1;             // whole, then the shard that it has led back to
    std::int64_t block = 0;             // elements that share a scale
    BufferId arrived = -1;              // the mean, decoded
    const std::byte* codes = nullptr;   // symbolic: of the own part
    bool gathered = false, kept = false, kept_error = false, kept_node_error = false,
         summed_error = false, summed_node_error = false;
    BufferUse running, ratio;  // of factors
    /// By bytes of the second moments that updates are by: the words of ratios, as plans compare
    /// them, and the places of factors, as updates read them.
    std::vector<std::pair<Range, std::int64_t>> words, factors;
    BufferId frozen = -1;
    std::int64_t first_word = 0;
    BufferId average = -1;
    BufferUse gathered_to;                 // momentum, by the last hop
    float join = 0;                        // what a gradient was multiplied with
    std::int64_t moved = 0, compared = 0;  // elements of the running moments
    bool copied = false, followed = false;
  };
  bool is_kept_error(const BufferUse& home) const;
  bool is_of_tensors(const BufferUse& home, std::int64_t tensors) const;

  const UnitShare& share(const Op& op) const;
  /// All of the state's momentum of a unit.
  void is_momentum(std::size_t at, Unit& unit, const BufferUse& home) const;

  const Plan& plan_;
  const Homes& homes_;
  std::map<std::int32_t, Unit> units_;
  BufferId table_ = -1;  // of the largest ratios: cleared, and compared over all ranks
  bool compared_ = false;
};

}  // namespace tessera::plan
