// Collectives that go over nodes in two hops, so that each byte crosses once to each other node: as
// several calls among some ranks of the group, which take the place of one among all.
#pragma once

#include <vector>

#include "comm/route.hpp"
#include "plan/passes/buffers.hpp"

namespace tessera::plan {

/// Calls that follow one another on one stream.
using Calls = std::vector<Call>;

/// How many shards a rank has between the two hops.
inline std::int64_t shards_between(const comm::Route& route) {
  return route.hops.size() > 1 ? route.hops.back().ranks.count : 0;
}

/// The first hop of a gather, across nodes: into `middle`, shards_between() shards. The second,
/// within nodes, is from there. With a route of one hop there is one call, and no middle.
Calls gather_across(const comm::Route& route, const comm::AllGather& gather, const View& middle);
Calls gather_within(const comm::Route& route, const comm::AllGather& gather, const View& middle);

/// Both, by way of a staging buffer.
Calls gather_over(Plan& plan, const comm::Route& route, const comm::AllGather& gather,
                  Staging& between);

/// A reduction over a route: sums of nodes, f32, are in `middle`. `staging` is for either hop.
Calls reduce_over(const comm::Route& route, const comm::ReduceScatter& reduce, const View& middle);

}  // namespace tessera::plan
