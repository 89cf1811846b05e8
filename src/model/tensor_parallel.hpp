// Tensor parallelism as unit functions see it: gathering what is split over ranks, and summing what
// each has computed a part of (Shoeybi et al. 2019, Megatron-LM, section 3; split by sequence:
// Korthikanti et al. 2022). With one chunk these calls do nothing.
#pragma once

#include <vector>

#include "model/context.hpp"

namespace tessera::model {

/// All positions (B, T, C) from the ranks' (B, T / ranks, C), where the sequence is split; `local`
/// itself elsewhere.
View gather_positions(UnitContext& u, const View& local, Keep keep);

/// A sum over all chunks, other ranks' included, in an aligned binary tree in f32, rounded once. It
/// makes the result of a row-parallel product, or the input gradient of a column-parallel one.
class ChunkSum {
 public:
  /// A sum of shape (B, T, columns); `bias` (columns) is added once, and may be absent. `result`:
  /// the sum's type; u8 stands for the compute type. `keep`: how long the sum is kept.
  ChunkSum(UnitContext& u, std::int64_t columns, const View& bias = {}, DType result = DType::u8,
           Keep keep = Keep::transient);

  /// Where the summand of this rank's i-th chunk must be written.
  View part(std::size_t i) const;
  /// The bias that whoever writes a summand must add; absent unless the summand is the whole sum.
  const View& bias_of_part() const { return bias_of_part_; }
  /// Starts the sum over ranks; computation that does not need it may follow before finish().
  void start();
  /// (B, T of positions(), columns) in the compute type, or in the result type given.
  View finish();

 private:
  UnitContext& u_;
  std::int64_t columns_;
  View bias_, bias_of_part_;
  View parts_;  // (own chunks, B T C) f32, or the result
  View sum_;    // (B, T of positions(), columns) f32, once it is summed over ranks
  DType result_;
  Keep keep_;
};

/// The sum over all chunks, other ranks' included, of (own chunks, n) f32, in an aligned binary
/// tree: (n) f32, on every rank.
View sum_over_chunks(UnitContext& u, const View& parts, Keep keep);

/// Several summands of one result, which are added in f32 and rounded once; of a single one the
/// result is its own place.
class Summands {
 public:
  /// `out`: dense.
  Summands(UnitContext& u, const View& out, std::int64_t count);
  /// Where the next one must be written.
  View next();
  /// Once all are.
  void finish();

 private:
  UnitContext& u_;
  View out_, parts_;  // (count, elements) f32, or absent
  std::int64_t given_ = 0;
};

/// Gradients of parameters that every tensor rank holds whole, while each computes only a part of
/// the gradient. The parts are summed over chunks or position groups, then over ranks, and written
/// or added to the gradient. Where this rank has several shares of sequences, each share has parts
/// of its own, which UnitContext::run finds, and sums over shares come last.
class PartialGradients {
 public:
  PartialGradients(UnitContext& u, kernels::Write write) : u_(u), write_(write) {}

  /// Memory for `count` parts of `gradient`, (count, elements), to be overwritten; the gradient
  /// itself where there is nothing to sum. Absent gradients give absent memory.
  View parts(const View& gradient, std::int64_t count, bool over_ranks);
  /// How to write into the memory that parts() has returned for `gradient`.
  kernels::Write write_to(const View& place, const View& gradient) const {
    return place.data == gradient.data ? write_ : kernels::Write::overwrite;
  }
  /// Sums the parts of all gradients that parts() was called for.
  void finish();

 private:
  struct Entry {
    View gradient, parts;  // (shares, count, elements)
    bool over_ranks = false;
  };
  void sum_shares(const Entry& e, const View& sums);
  UnitContext& u_;
  kernels::Write write_;
  std::vector<Entry> entries_;
};

/// A norm's backward at this rank's positions; returns d_sum. `norm` has every argument but d_sum,
/// the position groups and how to write; its gradients are those of the parameters.
View norm_backward(UnitContext& u, const ModelConfig& c, PartialGradients& partial,
                   kernels::NormBackward norm);

}  // namespace tessera::model
