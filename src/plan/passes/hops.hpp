// Collectives that go over nodes in two hops, so that each byte crosses once to each other node: as
// several calls among some ranks of the group, which take the place of one among all.
#pragma once

#include <map>
#include <vector>

#include "comm/route.hpp"
#include "core/enum_array.hpp"
#include "plan/ir/inputs.hpp"
#include "plan/passes/buffers.hpp"

namespace tessera::plan {

/// What a call does on the way of elements from rank to rank. The calls of a leg are on a stream of
/// their own, so that those of one chunk, or unit, go on beside other legs of the next.
enum class Leg : std::uint8_t {
  pack,    // a kernel: elements become blocks
  within,  // an exchange within nodes, or the only one
  sum,     // a kernel: blocks of a node are added up, and become blocks again
  across,  // an exchange between nodes
  unpack   // a kernel: what arrived becomes elements
};
struct LegRow {
  Leg leg;
  Stream of_gathers, of_reductions;
};
inline constexpr std::array kLegRows = {
    LegRow{Leg::pack, Stream::gather_pack, Stream::reduce_pack},
    LegRow{Leg::within, Stream::gather, Stream::reduce},
    LegRow{Leg::sum, Stream::gather_unpack, Stream::reduce_sum},  // gathers have none
    LegRow{Leg::across, Stream::gather_across, Stream::reduce_across},
    LegRow{Leg::unpack, Stream::gather_unpack, Stream::reduce_unpack}};
static_assert(indexed_by(&LegRow::leg, kLegRows));
constexpr const LegRow& row_of(Leg leg) { return at(kLegRows, leg); }

struct LegCall {
  Leg leg;
  Call call;
};
using Calls = std::vector<LegCall>;

/// How many shards a rank has between the two hops.
inline std::int64_t shards_between(const comm::Route& route) {
  return route.hops.size() > 1 ? route.hops.back().ranks.count : 0;
}

/// How a unit travels among the ranks that share it: gradients as they are and in blocks, and what
/// is gathered.
struct Routes {
  comm::Route sums, blocks, gathers;
};
/// Those of a rank's units, which are made once for each kind of sharers.
class RoutesOfUnits {
 public:
  RoutesOfUnits(const PlanInputs& in, const MeshPlace& place) : in_(in), place_(place) {}
  const Routes& of(std::size_t unit);

 private:
  const PlanInputs& in_;
  const MeshPlace& place_;
  std::map<MeshGroup, Routes> made_;
};

/// The first hop of a gather, across nodes: into `middle`, shards_between() shards. The second,
/// within nodes, is from there. With a route of one hop there is one call, and no middle.
Calls gather_across(const comm::Route& route, const comm::AllGather& gather, const View& middle);
Calls gather_within(const comm::Route& route, const comm::AllGather& gather, const View& middle);

/// Both, by way of staging.
Calls gather_over(Plan& plan, const comm::Route& route, const comm::AllGather& gather,
                  TurnStaging& between);

/// Bytes of staging of a sum on each hop: of `full` that travels as `wire`, then of f32 sums.
std::vector<std::int64_t> sum_staging(const comm::Route& route, const comm::GroupShape& group,
                                      DType wire, DType full = DType::f32);

/// A reduction over a route: sums of nodes, f32, are in `middle`. `staging` is for the hop within
/// nodes, or the only one; the hop between them has `staging_across`.
Calls reduce_over(const comm::Route& route, const comm::ReduceScatter& reduce, const View& middle,
                  const View& staging_across);

}  // namespace tessera::plan
