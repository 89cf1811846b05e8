#include "plan/passes/hops.hpp"

namespace tessera::plan {

Calls gather_across(const comm::Route& route, const comm::AllGather& gather, const View& middle) {
  if (route.hops.size() == 1) return {};
  return {comm::CollectiveCall{
      comm::AllGather{.shard = gather.shard, .full = middle, .among = route.hops.back()}}};
}

Calls gather_within(const comm::Route& route, const comm::AllGather& gather, const View& middle) {
  if (route.hops.size() == 1) return {comm::CollectiveCall{gather}};
  return {comm::CollectiveCall{comm::AllGather{
      .shard = middle, .full = gather.full, .blocks = route.outer, .among = route.hops.front()}}};
}

Calls gather_over(Plan& plan, const comm::Route& route, const comm::AllGather& gather,
                  Staging& between) {
  View middle;
  if (const std::int64_t bytes = shards_between(route) * gather.shard.span_bytes(); bytes > 0)
    middle = View(between.view(plan, bytes).data, gather.shard.type,
                  {bytes / size_of(gather.shard.type)});
  Calls calls = gather_across(route, gather, middle);
  for (Call& call : gather_within(route, gather, middle)) calls.push_back(std::move(call));
  return calls;
}

Calls reduce_over(const comm::Route& route, const comm::ReduceScatter& reduce, const View& middle) {
  if (route.hops.size() == 1) return {comm::CollectiveCall{reduce}};
  comm::ReduceScatter within = reduce, across = reduce;
  within.shard = across.full = middle;
  within.write = kernels::Write::overwrite;
  within.blocks = route.outer;
  within.among = route.hops.front(), across.among = route.hops.back();
  return {comm::CollectiveCall{within}, comm::CollectiveCall{across}};
}

}  // namespace tessera::plan
