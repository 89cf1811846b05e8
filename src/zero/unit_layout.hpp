// The flat layout of a unit: what a tensor rank holds of its parameters, one after another in one
// buffer that divides evenly over the data ranks (Rajbhandari et al. 2020, "ZeRO"). All index
// arithmetic of shards lives here.
#pragma once

#include <span>
#include <vector>

#include "core/math.hpp"
#include "core/view.hpp"
#include "model/parameters.hpp"

namespace tessera::zero {

/// A chunk of one parameter, or a whole parameter that is not cut, as a dense matrix in the flat
/// buffer.
struct LayoutPiece {
  std::size_t parameter = 0;
  bool whole = false;       // every tensor rank holds the same
  MatrixRange part;         // in stored rows
  std::int64_t offset = 0;  // in the flat buffer
};

/// Where things are in a unit's flat buffer, in elements: the same for parameters, gradients and
/// every optimizer state of the unit.
struct UnitLayout {
  std::vector<LayoutPiece> pieces;                 // in flat order: matrices before vectors
  std::vector<std::vector<std::size_t>> piece_of;  // [parameter][own chunk], or [parameter][0]
  std::int64_t used = 0;                           // end of the last piece
  std::int64_t padded = 0;  // used, padded to a multiple of (data ranks x shards' grain)
  std::int64_t shard = 0;   // padded / data ranks

  Range shard_of(std::int64_t data_rank) const {
    return {data_rank * shard, (data_rank + 1) * shard};
  }
  std::int64_t offset_of(std::size_t parameter, std::int64_t chunk = 0) const;
};

/// Shards start on multiples of this many elements, and of a block's where a unit may travel
/// quantised. So do pieces: which elements share a scale depends on no number of data ranks, and
/// none do that are of two matrices which are not joined.
inline constexpr std::int64_t kShardGrain = 16;
/// Pieces that are not joined to the one before start on multiples of this many elements: at least
/// 64 bytes in every type, so that the alignment of a product's operands does not depend on what
/// lies before them.
inline constexpr std::int64_t kPieceGrain = 32;

/// Matrices come before vectors, so that what an optimizer does with all of one kind, such as
/// weight decay, applies to one range of every shard, which groups of parameters may cut further.
/// Within each, pieces are ordered by chunk, so that what a rank holds is a range of what a rank
/// holds when there are fewer of them.
UnitLayout unit_layout(const model::UnitDesc& unit, std::int64_t data_ranks,
                       const model::TensorCut& cut = {});

/// Views of the parameters (or their gradients, ...) in `flat`, which has layout.padded elements.
/// Matrices have their stored rows.
model::ParameterViews parameter_views(const model::UnitDesc& unit, const UnitLayout& layout,
                                      const View& flat);

/// A part of one parameter that lies densely in a range of the flat buffer.
struct ParameterSlice {
  std::size_t parameter = 0;
  bool whole = false;     // every tensor rank holds the same
  MatrixRange part;       // padding rows excluded
  std::int64_t flat = 0;  // where its first element lies in the flat buffer
};
/// The parts of parameters that lie in [range), in flat order. Padding and gaps are in none.
std::vector<ParameterSlice> slices_in(const model::UnitDesc& unit, const UnitLayout& layout,
                                      Range range);

/// The parts of [range) that tensor rank `cut.rank` counts: what every tensor rank holds whole is
/// counted by rank 0 alone.
std::vector<Range> counted(const UnitLayout& layout, Range range, const model::TensorCut& cut);

}  // namespace tessera::zero
