// Muon (Jordan et al. 2024) over ranks: matrices of blocks are updated by what becomes of them as
// wholes. Each has a home among the ranks of its pipeline stage, which all ranks that count parts
// of its direction send these to; there it is made orthogonal, once, and the parts of the result go
// to the ranks that update them. Homes are dealt so that all have as much to compute.
#pragma once

#include "plan/passes/updates.hpp"

namespace tessera::plan {

/// An op, and the flat elements of its unit whose weights it moves, if any.
struct MatrixOp {
  Op op;
  Range moved;
};

/// The updates of all such matrices, behind the verdict; `gradients`: the owned ones, by unit. None
/// where the optimizer has no use for whole matrices.
///
/// Matrices go in rounds, of as many whole layers as give each rank a matrix. While those of one
/// round are computed the next round's are on their way.
std::vector<MatrixOp> matrix_updates(Plan& plan, const PlanInputs& in,
                                     const std::vector<UnitState>& states,
                                     const std::vector<View>& gradients);

/// Where the matrices of a pipeline stage are at home, by their tensor and first row: ranks of the
/// stage's group.
struct MatrixHome {
  std::string parameter;
  std::int64_t row = 0, home = 0;
  double flop = 0;
};
std::vector<MatrixHome> matrix_homes(const PlanInputs& in, std::int64_t stage);

}  // namespace tessera::plan
