// ZeRO++ (Wang et al. 2023): parameters and gradients that travel as blocks of int8 or int4. Each
// function returns the ops that take the place of one collective: kernels that make and add blocks,
// and exchanges between them. They are ops of the plan, not an encoding inside a collective: so the
// proof follows each contribution to its sum, the ledger and the simulator count them, and no back
// end has code of its own for them.
#pragma once

#include <string>
#include <vector>

#include "plan/ir/inputs.hpp"
#include "plan/passes/hops.hpp"

namespace tessera::plan {

/// The chunks in which shards of n elements go, all of them at once, as ranges of a shard: of whole
/// blocks, as even as that allows, and of at most `bytes` before they become blocks, or of one
/// block. So messages are as long among many ranks as among few.
std::vector<Range> chunks_of(std::int64_t n, DType type, const kernels::BlockFormat& format,
                             std::int64_t bytes);

/// Bytes of so many slots of n elements.
inline std::int64_t block_staging(const kernels::BlockFormat& format, std::int64_t slots,
                                  std::int64_t n) {
  return slots * format.bytes(n);
}

/// A chunk of comm::AllGather in blocks (section 3.1): that of the shard becomes codes, whose
/// gather is a gather of bytes, and all codes become that of the whole. The rank's own shard is
/// quantised too, so that all ranks get the same values. `shard` must not lie in `full`.
struct GatherInBlocks {
  Call quantize;
  comm::AllGather codes;
  Call dequantize;
};
/// `chunk`: elements of a shard. `staging` has the codes of all ranks, block_staging() bytes; `own`
/// those of this one, or is absent: then they are there too.
GatherInBlocks gather_in_blocks(const comm::AllGather& gather, std::int64_t rank,
                                const kernels::BlockFormat& format, const Range& chunk,
                                const View& staging, const View& own = {});

/// How contributions become blocks; by default to the nearest code, and what that loses is lost.
struct BlockRounding {
  std::int64_t rank = 0;   // in the group
  kernels::Chance chance;  // of the whole gradient's elements; its site, of a unit
  View error = {}, lost = {}, scalars = {};  // of kernels::Quantize
  /// Of kernels::RequantizeSum, (shards between hops, n), or absent: what that loses is lost.
  View node_error = {}, node_lost = {};
};

/// What leaves on a hop of a reduction, and what arrives.
struct HopStaging {
  View leaving, arriving;
};
/// Bytes of either on each hop.
std::vector<std::int64_t> hop_staging(const comm::Route& route, const kernels::BlockFormat& format,
                                      std::int64_t n);

/// A chunk of comm::ReduceScatter in blocks (section 3.3): each rank quantises its contributions,
/// one slot for each rank. On every hop of the route the slots that arrive are added in f32; all
/// but the last hop quantise the sums again. `chunk`: elements of a shard; `staging`: of each hop.
Calls reduce_in_blocks(const comm::ReduceScatter& reduce, const comm::Route& route,
                       const kernels::BlockFormat& format, const Range& chunk,
                       std::span<const HopStaging> staging, const BlockRounding& rounding);

/// A buffer for what roundings of a unit lose in a step, bf16.
View lost_buffer(Plan& plan, const PlanInputs& inputs, std::size_t unit, const char* what,
                 std::int64_t elements);

/// "parameters int8 in blocks of 256; gradients int4 in blocks of 256, added in nodes of 8 ranks,
/// then over 2 nodes" for the data group of `place`; "" without blocks.
std::string blocks_text(const PlanInputs& inputs, const MeshPlace& place);

}  // namespace tessera::plan
