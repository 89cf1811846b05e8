#include "plan/passes/hops.hpp"

namespace tessera::plan {

const Routes& RoutesOfUnits::of(std::size_t unit) {
  const MeshGroup sharers = in_.model.units[unit].traits.shared_by;
  const auto [it, is_new] = made_.try_emplace(sharers);
  if (is_new) {
    it->second = {.sums = sum_route(in_, place_, sharers),
                  .blocks = gradient_route(in_, place_, sharers),
                  .gathers = gather_route(in_, place_, sharers)};
  }
  return it->second;
}

Calls gather_across(const comm::Route& route, const comm::AllGather& gather, const View& middle) {
  if (route.hops.size() == 1) return {};
  return {{Leg::across, comm::CollectiveCall{comm::AllGather{
                            .shard = gather.shard, .full = middle, .among = route.hops.back()}}}};
}

Calls gather_within(const comm::Route& route, const comm::AllGather& gather, const View& middle) {
  if (route.hops.size() == 1) return {{Leg::within, comm::CollectiveCall{gather}}};
  return {{Leg::within, comm::CollectiveCall{comm::AllGather{.shard = middle,
                                                             .full = gather.full,
                                                             .blocks = route.outer,
                                                             .among = route.hops.front()}}}};
}

Calls gather_over(Plan& plan, const comm::Route& route, const comm::AllGather& gather,
                  TurnStaging& between) {
  View middle;
  if (const std::int64_t bytes = shards_between(route) * gather.shard.span_bytes(); bytes > 0)
    middle = View(between.next(plan, bytes).data, gather.shard.type,
                  {bytes / size_of(gather.shard.type)});
  Calls calls = gather_across(route, gather, middle);
  for (LegCall& call : gather_within(route, gather, middle)) calls.push_back(std::move(call));
  return calls;
}

std::vector<std::int64_t> sum_staging(const comm::Route& route, const comm::GroupShape& group,
                                      DType wire, DType full) {
  if (route.hops.size() == 1) return {comm::reduce_scatter_staging(group, wire, full)};
  return {comm::reduce_scatter_staging(shape_of(route.hops.front(), group), wire, full),
          comm::reduce_scatter_staging(shape_of(route.hops.back(), group), wire, DType::f32)};
}

Calls reduce_over(const comm::Route& route, const comm::ReduceScatter& reduce, const View& middle,
                  const View& staging_across) {
  if (route.hops.size() == 1) return {{Leg::within, comm::CollectiveCall{reduce}}};
  comm::ReduceScatter within = reduce, across = reduce;
  within.shard = across.full = middle;
  within.write = kernels::Write::overwrite;
  within.blocks = route.outer;
  within.among = route.hops.front(), across.among = route.hops.back();
  across.staging = staging_across;
  return {{Leg::within, comm::CollectiveCall{within}}, {Leg::across, comm::CollectiveCall{across}}};
}

}  // namespace tessera::plan
