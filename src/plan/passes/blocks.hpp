// ZeRO++ (Wang et al. 2023): what moves parameters and gradients as blocks of int8 or int4, in
// place of one collective.
#pragma once

#include <string>
#include <vector>

#include "plan/ir/inputs.hpp"

namespace tessera::plan {

/// Calls that follow one another on one stream.
using Calls = std::vector<Call>;

/// Bytes of a staging, for a gather or for each of a reduction's two, of `size` shards of n
/// elements.
inline std::int64_t block_staging(const kernels::BlockFormat& format, std::int64_t size,
                                  std::int64_t n) {
  return size * format.bytes(n);
}

/// comm::AllGather in blocks (section 3.1). What the rank itself holds is rounded like everybody
/// else's, so that all have the same. `shard` must not lie in `full`.
Calls gather_in_blocks(const comm::AllGather& gather, std::int64_t rank,
                       const kernels::BlockFormat& format, const View& staging);

/// comm::ReduceScatter in blocks (section 3.3): each rank's slots set out; on every hop of the
/// route those that arrive are added in f32, and sums go on in blocks again. `leaving` and
/// `arriving` are stagings.
Calls reduce_in_blocks(const comm::ReduceScatter& reduce, const comm::Route& route,
                       const kernels::BlockFormat& format, const View& leaving,
                       const View& arriving);

/// "parameters int8 in blocks of 256; gradients int4 in blocks of 256, added in nodes of 8 ranks,
/// then over 2 nodes" for the data group of `place`; "" without blocks.
std::string blocks_text(const PlanInputs& inputs, const MeshPlace& place);

}  // namespace tessera::plan
