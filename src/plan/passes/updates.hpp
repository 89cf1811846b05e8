// The ops that passes over a unit's elements become: those of an optimizer's step.
#pragma once

#include <optional>
#include <span>

#include "plan/passes/buffers.hpp"
#include "plan/passes/state.hpp"

namespace tessera::plan {

/// Instead of a unit: of no unit, or of all.
inline constexpr auto kAllUnits = static_cast<std::size_t>(-1);
Op op_of(OpKind kind, Stream stream, std::size_t unit, Call call);

/// Some of the elements that a rank updates of a unit, all of them alike to the optimizer.
struct Piece {
  Range elements;
  optim::UpdateTerms terms;
  View sums = {};             // of their tensor, where the update has two passes
  View direction = {};        // theirs, where matrices are made orthogonal; absent of padding
  std::size_t parameter = 0;  // of the unit, where a piece is of one
};

/// A pass of the optimizer's step over a piece of one unit.
Op update_op(const Plan& plan, const PlanInputs& in, std::size_t unit, const UnitState& s,
             const View& gradient, const Piece& piece, const optim::Pass& pass);

/// A piece of a unit's layout with the padding that follows it, which is 0.
Range with_padding(const zero::UnitLayout& layout, std::size_t piece);

/// A part of a range that one of several others has, or none.
struct SplitRange {
  Range elements;
  std::optional<std::size_t> of;  // index of the range that has it
};
/// A range in parts, in its order. `ranges` have no element in common, and are sorted.
std::vector<SplitRange> split_by(Range whole, std::span<const Range> ranges);

/// A range of a unit in tiles, where what updates use lives elsewhere.
std::vector<Range> tiles_of(const PlanInputs& in, const UnitState& s, Range part);

}  // namespace tessera::plan
