// Tensor parallelism as the units see it: what is whole on every rank becomes parts, and sums over
// parts become whole again (Shoeybi et al. 2019, Megatron-LM, section 3; by sequence: Korthikanti
// et al. 2022). With one chunk all of it is nothing.
#pragma once

#include <vector>

#include "model/context.hpp"

namespace tessera::model {

/// (B, T, C) from the ranks' (B, T / ranks, C) where the sequence is split; `local` itself
/// elsewhere.
View gather_positions(UnitContext& u, const View& local, Keep keep);

/// A sum over all chunks, those of other ranks included, in an aligned binary tree in f32, rounded
/// once: what a row-parallel product gives, or the input gradient of a column-parallel one.
class ChunkSum {
 public:
  /// Of (B, T, columns); `bias` (columns) is added once, or absent.
  ChunkSum(UnitContext& u, std::int64_t columns, const View& bias = {}, DType result = DType::u8);

  /// Where own chunk i's part goes.
  View part(std::size_t i) const;
  /// The bias that whoever writes a part adds: only where it is the whole sum.
  const View& bias_of_part() const { return bias_of_part_; }
  /// Hands the parts to the other ranks; what does not need the sum may be computed meanwhile.
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
};

/// Gradients of parameters that every tensor rank holds whole while each computes a part: the parts
/// are summed over groups or chunks, then over ranks, and added to the gradient.
class PartialGradients {
 public:
  PartialGradients(UnitContext& u, kernels::Write write) : u_(u), write_(write) {}

  /// A place for `count` parts of `gradient`, (count, elements), to be overwritten: the gradient
  /// itself where there is nothing to sum. Absent gradients give absent places.
  View parts(const View& gradient, std::int64_t count, bool over_ranks);
  /// How whoever fills the place of `gradient` must write.
  kernels::Write write_to(const View& place, const View& gradient) const {
    return place.data == gradient.data ? write_ : kernels::Write::overwrite;
  }
  /// Sums all of them.
  void finish();

 private:
  struct Entry {
    View gradient, parts;
    bool over_ranks = false;
  };
  UnitContext& u_;
  kernels::Write write_;
  std::vector<Entry> entries_;
};

/// A norm's backward at this rank's positions; returns d_sum. `norm` has everything but d_sum, the
/// groups and how to write; its gradients are the parameters'.
View norm_backward(UnitContext& u, const ModelConfig& c, PartialGradients& partial,
                   kernels::NormBackward norm);

}  // namespace tessera::model
