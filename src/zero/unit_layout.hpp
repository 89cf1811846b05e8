// The flat layout of a unit: its tensors one after another in one buffer that divides evenly over
// the data ranks (Rajbhandari et al. 2020, "ZeRO"). All index arithmetic of shards lives here.
#pragma once

#include <span>
#include <vector>

#include "core/math.hpp"
#include "core/view.hpp"
#include "model/parameters.hpp"

namespace tessera::zero {

/// Elements; the same for parameters, gradients and every optimizer state of the unit.
struct UnitLayout {
  std::vector<std::int64_t> offsets;  // of each parameter
  std::int64_t used = 0;              // end of the last parameter
  std::int64_t padded = 0;            // used, padded to a multiple of (data ranks x kShardGrain)
  std::int64_t decay_end = 0;         // weight decay applies to [0, decay_end)
  std::int64_t shard = 0;             // padded / data ranks

  Range shard_of(std::int64_t data_rank) const {
    return {data_rank * shard, (data_rank + 1) * shard};
  }
};

/// Shards start on multiples of this many elements, and so does every parameter that is not joined
/// to its predecessor.
inline constexpr std::int64_t kShardGrain = 16;

UnitLayout unit_layout(const model::UnitDesc& unit, std::int64_t data_ranks);

/// Views of the parameters (or their gradients, ...) in `flat`, which has layout.padded elements.
/// Matrices have their stored rows.
std::vector<View> parameter_views(const model::UnitDesc& unit, const UnitLayout& layout,
                                  const View& flat);

/// A part of one parameter that lies in a range of the flat buffer.
struct ParameterSlice {
  std::size_t parameter = 0;
  Range elements;         // of the parameter, row-major, padding rows excluded
  std::int64_t flat = 0;  // where elements.begin lies in the flat buffer
};
/// What of which parameter lies in [range), in flat order. Padding and gaps belong to nobody.
std::vector<ParameterSlice> slices_in(const model::UnitDesc& unit, const UnitLayout& layout,
                                      Range range);

}  // namespace tessera::zero
