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

/// A chunk of one parameter, or all of one that is not cut, as a dense matrix in the flat buffer.
struct LayoutPiece {
  std::size_t parameter = 0;
  bool whole = false;       // every tensor rank holds the same
  MatrixRange part;         // in stored rows
  std::int64_t offset = 0;  // in the flat buffer
};

/// Elements; the same for parameters, gradients and every optimizer state of the unit.
struct UnitLayout {
  std::vector<LayoutPiece> pieces;                 // in flat order: matrices before vectors
  std::vector<std::vector<std::size_t>> piece_of;  // [parameter][own chunk], or [parameter][0]
  std::int64_t used = 0;                           // end of the last piece
  std::int64_t padded = 0;     // used, padded to a multiple of (data ranks x kShardGrain)
  std::int64_t decay_end = 0;  // weight decay applies to [0, decay_end)
  std::int64_t shard = 0;      // padded / data ranks

  Range shard_of(std::int64_t data_rank) const {
    return {data_rank * shard, (data_rank + 1) * shard};
  }
  std::int64_t offset_of(std::size_t parameter, std::int64_t chunk = 0) const;
};

/// Shards start on multiples of this many elements.
inline constexpr std::int64_t kShardGrain = 16;
/// Pieces that are not joined to their predecessor start on multiples of this many: 64 bytes in
/// every type, so that a product's operands lie alike whatever comes before them.
inline constexpr std::int64_t kPieceGrain = 32;

/// Pieces are ordered by chunk within the matrices, and within the vectors, so that a rank's part
/// is a range of what fewer ranks hold.
UnitLayout unit_layout(const model::UnitDesc& unit, std::int64_t data_ranks,
                       const model::TensorCut& cut = {});

/// Views of the parameters (or their gradients, ...) in `flat`, which has layout.padded elements.
/// Matrices have their stored rows.
model::ParameterViews parameter_views(const model::UnitDesc& unit, const UnitLayout& layout,
                                      const View& flat);

/// A part of one parameter that lies, dense, in a range of the flat buffer.
struct ParameterSlice {
  std::size_t parameter = 0;
  bool whole = false;     // every tensor rank holds the same
  MatrixRange part;       // padding rows excluded
  std::int64_t flat = 0;  // where its first element lies in the flat buffer
};
/// What of which parameter lies in [range), in flat order. Padding and gaps belong to nobody.
std::vector<ParameterSlice> slices_in(const model::UnitDesc& unit, const UnitLayout& layout,
                                      Range range);

/// The parts of [range) that tensor rank `cut.rank` answers for: what every tensor rank holds is
/// rank 0's.
std::vector<Range> counted(const UnitLayout& layout, Range range, const model::TensorCut& cut);

}  // namespace tessera::zero
